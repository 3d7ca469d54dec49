"""The program that compares all instruction levels of this machine, bit for bit; see levels.cpp."""

from __future__ import annotations

import subprocess
from pathlib import Path

from heddle import _native


def test_every_level_computes_what_the_portable_one_does() -> None:
    """Editable builds install the program beside the native module, from the same objects."""
    program = Path(_native.__file__).with_name("levels")
    assert program.exists(), f"{program} is missing: install with `pip install -e .`"
    levels = _native.isa_levels()
    emulated = ["emulated"] if "avx2" in levels else []
    done = subprocess.run(
        [program, *levels, *emulated], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 50, "one line for each kernel"
