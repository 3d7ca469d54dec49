"""A package with a device that is the processor, and fails when a test says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from heddle.doors import Device, Extension
from heddle.executors.cpu.load import load as load_on_processor

EXTENSION = Extension(devices={"failing": Device("heddle_failing:load")})
FOLDER = "HEDDLE_TEST_FAILING"
"""Variable with the folder of files that are named like processes whose steps fail."""


def load(checkpoint: Any, config: Any, progress: Any = lambda loaded: None) -> Any:
    """An executor of the processor, whose steps fail while this process has its file.

    It counts its steps in a second file.
    """
    executor: Any = load_on_processor(checkpoint, config, progress)
    submit, file = executor.submit, Path(os.environ[FOLDER], str(os.getpid()))
    steps = 0

    def checked(plan: Any) -> None:
        nonlocal steps
        if file.exists():
            raise RuntimeError("the device burns")
        steps += 1
        file.with_suffix(".steps").write_text(str(steps))
        submit(plan)

    executor.submit = checked
    return executor
