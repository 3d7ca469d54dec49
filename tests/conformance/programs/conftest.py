"""A server on the default model, as a process, for clients that need an environment of their own.

Their requirements exclude Heddle's. `scripts/check_clients.sh programs` makes the environment and
runs these tests in it; elsewhere pytest leaves them out.
"""

from __future__ import annotations

import os
import signal
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

collect_ignore_glob = [] if find_spec("litellm") else ["test_*.py"]

SETTINGS = ("--port", "0", "--slots", "4", "--context", "4096", "--temperature", "0")
"""A strict server. Clients that cannot send a temperature get the likeliest tokens, too."""


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of the server, without `/v1`."""
    command = [os.environ["HEDDLE"], "serve", *SETTINGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready")), None)
        assert ready is not None, "the server ended before it was ready"
        yield ready.split()[1].removesuffix("/v1")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
