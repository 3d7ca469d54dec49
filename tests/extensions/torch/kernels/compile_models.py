"""Compiles what models launch for a GPU that need not be there; run as a program.

    python compile_models.py [FAMILY ...]    # of tests/models/tiny; `types`: matmuls of all types

It loads tiny models and computes steps, but each launch only compiles its kernel, for its real
arguments. It prints each variant: seconds, and bytes of shared memory.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from heddle.config import EngineConfig
from heddle.step import Chunk, StepPlan, WindowPages
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

H100 = GPUTarget("cuda", 90, 32)
MOST_SHARED, MOST_GRID = 227 << 10, 65_535
FAMILIES = ("gemma2", "gpt_oss", "deepseek_v2", "qwen3_moe", "qwen3_next", "kimi_linear", "mamba2")
TOKENS = 48


class Driver:
    """Stands for the driver of a GPU."""

    utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": MOST_SHARED})

    def get_current_target(self) -> GPUTarget:
        return H100

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return device


@contextmanager
def only_compiling() -> Iterator[list[str]]:
    """Compile at each launch, and compute nothing. The list gets a line for each variant."""
    triton.runtime.driver.set_active(cast("Any", Driver()))
    found: dict[int, Any] = {}
    lines: list[str] = []
    run = JITFunction.run

    def compiled(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        assert not warmup
        assert max(grid[1:], default=1) <= MOST_GRID, f"{kernel.__name__}: grid {grid}"
        began = time.perf_counter()
        variant = run(kernel, *args, grid=grid, warmup=True, **kwargs)
        if id(variant) in found:
            return
        found[id(variant)] = variant  # keeps it, so that no other gets its id
        seconds, shared = time.perf_counter() - began, variant.metadata.shared
        assert shared <= MOST_SHARED, f"{kernel.__name__} needs {shared} bytes of shared memory"
        options = {name: one for name, one in kwargs.items() if not isinstance(one, bool) or one}
        lines.append(f"{seconds:5.2f} s {shared:6} {kernel.__name__} {options}")
        print(lines[-1], flush=True)

    JITFunction.run = compiled  # type: ignore[method-assign]
    try:
        yield lines
    finally:
        JITFunction.run = run  # type: ignore[method-assign]


def compile_family(name: str) -> None:
    """Compile the kernels that models of a family launch for a prompt and in recorded steps."""
    from heddle.extensions.torch import load

    class Capture:
        """Records nothing."""

        def prepare(self, region: Any) -> None:
            region()

        def record(self, region: Any) -> Any:
            region()
            return region

    config = EngineConfig(
        slots=2, threads=1, kv_cache=1 << 20, batch_tokens=64, speculation="off", device="torch"
    )
    sys.path.insert(0, str(Path(__file__).parents[3]))
    family = importlib.import_module(f"models.tiny.{name}")
    with tempfile.TemporaryDirectory() as folder:
        for model in family.MODELS[:2]:
            checkpoint = replace(model, context=TOKENS).checkpoint(Path(folder))
            executor: Any = load.load(checkpoint, config, capture=Capture())
            with torch.inference_mode():
                executor.warm_up(lambda done: None)
                windows = [WindowPages(0, [0, 1]) for _ in executor.memory.windows]
                chunk = Chunk(0, 0, [1] * TOKENS, [0, 1], True, windows=windows)
                step = executor._program.begin(StepPlan((), (chunk,)), lambda: None)
                list(step.logits([TOKENS - 1]))


def compile_types() -> None:
    """Matmuls of weights of each type: one tile, and four."""
    from heddle.extensions.torch.blocks import empty_fields
    from heddle.extensions.torch.kernels.matmul import multiply
    from heddle.extensions.torch.kernels.operands import operand, operand_type
    from heddle.extensions.torch.tiles import TILE
    from heddle.extensions.torch.weights import Matrix

    device = torch.device("cpu")
    for kind in TensorType.supported():
        for rows in (4096, 32768):
            matrix = Matrix(empty_fields(rows, 256, kind, device), kind, 256)
            for tiles in (1, 32):
                multiply(operand(torch.zeros(tiles * TILE, 256), operand_type(kind)), matrix)


def main() -> None:
    from heddle.extensions.torch import program
    from heddle.extensions.torch.kernels import operands
    from heddle.extensions.torch.triton_ops import TritonOps

    # On a processor, operands of bfloat16 are kept in float32, and torch computes.
    operands.kept_type = lambda kind, device: kind
    program.operations = lambda device: TritonOps
    with only_compiling():
        for name in sys.argv[1:] or (*FAMILIES, "types"):
            if name == "types":
                compile_types()
            else:
                compile_family(name)


if __name__ == "__main__":
    main()
