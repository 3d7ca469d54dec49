"""Files that were edited at random give a typed error, or a model, and take little memory.

`edited_files.py` tries more edits by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EDITS = 60
MOST_BYTES = 200 << 20


@pytest.mark.slow
def test_edited_models_give_typed_errors_and_take_little_memory() -> None:
    program = Path(__file__).with_name("edited_files.py")
    done = subprocess.run(
        [sys.executable, program, "0", str(EDITS)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == EDITS, done.stderr[-2000:]
    assert [line for line in lines if not line["typed"]] == []
    assert max(line["bytes"] for line in lines) < MOST_BYTES
    assert {line["error"] is None for line in lines} == {True, False}
