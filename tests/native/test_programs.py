"""Programs whose kernels fail, or abandon the step, at a known place; see programs.cpp."""

from __future__ import annotations

import subprocess
from pathlib import Path

from heddle import _native
from patience import PATIENCE


def test_a_step_that_fails_or_is_abandoned_ends_and_leaves_the_threads_usable() -> None:
    """Editable builds install the program beside the native module, from the same objects."""
    program = Path(_native.__file__).with_name("programs")
    assert program.exists(), f"{program} is missing: install with `pip install -e .`"
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
