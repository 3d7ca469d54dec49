"""Official clients of OpenAI, Anthropic, Ollama and LangChain, and a search through the description
of the API, get from a deployment what they get from one server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deployment import Deployment

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.model]

TESTS = Path(__file__).parents[3] / "conformance"


@pytest.mark.parametrize("file", [one.name for one in sorted(TESTS.glob("test_*.py"))])
def test_clients_conform(deployment: Deployment, file: str) -> None:
    """The tests use the deployment in place of servers of their own, as `live_server.py` says."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "--durations=5", str(TESTS / file)],
        env=os.environ | {"HEDDLE_TEST_URL": deployment.url},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0
