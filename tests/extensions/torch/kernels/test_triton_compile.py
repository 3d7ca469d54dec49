"""The kernels that models launch compile for a GPU, which need not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from triton_device import run_without_interpreter

if TYPE_CHECKING:
    from pathlib import Path

SLOW = ("gemma2", "gpt_oss", "deepseek_v2", "qwen3_next", "kimi_linear", "mamba2", "types")


@pytest.mark.parametrize(
    "part", ["qwen3_moe", *(pytest.param(one, marks=pytest.mark.torch_slow) for one in SLOW)]
)
def test_what_models_launch_compiles(part: str, tmp_path: Path) -> None:
    """The interpreter runs what the compiler refuses, such as a variable of two types."""
    assert "_multiply" in run_without_interpreter("compile_models.py", tmp_path, part)
