"""Programs of the native core's own tests; see programs.cpp and threads.cpp."""

from __future__ import annotations

import subprocess
from pathlib import Path

from heddle import _native
from patience import PATIENCE


def check(program: str) -> None:
    """Editable builds install the program beside the native module, from the same objects."""
    path = Path(_native.__file__).with_name(program)
    assert path.exists(), f"{path} is missing: install with `pip install -e .`"
    done = subprocess.run([path], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def test_a_step_that_fails_or_is_abandoned_ends_and_leaves_the_threads_usable() -> None:
    check("programs")


def test_threads_do_each_item_once_and_in_the_order_of_instructions() -> None:
    check("threads")
