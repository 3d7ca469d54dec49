"""Compiles matmuls for a GPU that need not be there; run as a program.

The interpreter runs what the compiler refuses, such as pointers of different types in one variable.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from heddle.executors.torch.kernels import matmul
from heddle.executors.torch.kernels.codes import CODES
from heddle.executors.torch.tiles import TILE
from heddle.weights.tensor_types import TensorType

H100 = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
}
FLOATS = {TensorType.F16: torch.float16, TensorType.BF16: torch.bfloat16}
INTEGERS = ("count", "in_features", "x_stride")
POINTERS_TO_INTEGERS = ("sources", "targets", "matrices", "firsts")


def signature(kind: TensorType, matrices: int) -> dict[str, Any]:
    """The types of a launch with so many matrices."""
    codes = CODES.get(kind)
    fields = [POINTERS[own] for own in (codes.fields if codes else (FLOATS[kind],))]
    fields += fields[:1] * (5 - len(fields))
    types: dict[str, Any] = dict.fromkeys(INTEGERS, "i32")
    types |= dict.fromkeys(POINTERS_TO_INTEGERS, "*i64")
    types |= {
        "ys": ("*fp32",) * matrices,
        "biases": ("*fp32",) * matrices,
        "out_features": ("i32",) * matrices,
        "fields": (tuple(fields),) * matrices,
        "grid": fields[0],
        "x": POINTERS[FLOATS.get(kind, torch.float16)],
    }
    return {name: types.get(name, "*fp32") for name in matmul._multiply.arg_names}


def compiled(kind: TensorType, matrices: int, **constants: Any) -> Any:
    """The kernel for numbers that are multiples of 16."""
    codes = CODES.get(kind)
    run = codes.run if codes else 0
    constants |= {
        "KIND": kind.name,
        "RUN": run,
        "BLOCK_RUNS": kind.block_elements // run if run else 0,
        "OFFSETS": codes is not None and codes.has_offsets,
        "PIECE": matmul._PIECE,
        "FACTORS": kind is not TensorType.BF16,
        "ROWS": 32,
        "TOKENS": TILE,
    }
    types = signature(kind, matrices) | dict.fromkeys(constants, "constexpr")
    values = {(place,): constants[name] for place, name in enumerate(types) if name in constants}
    aligned = {
        (place, *path): [["tt.divisibility", 16]]
        for place, (name, own) in enumerate(types.items())
        if name not in (*constants, "count")
        for path in paths(own)
    }
    return triton.compile(ASTSource(matmul._multiply, types, values, aligned), target=H100)


def paths(types: Any) -> list[tuple[int, ...]]:
    """Where the types lie in a tuple of tuples."""
    if not isinstance(types, tuple):
        return [()]
    return [(place, *path) for place, own in enumerate(types) for path in paths(own)]


def main() -> None:
    compiled(TensorType.Q4_K, 3, GROUPED=False, BIAS=True, WIDTH=1)
    compiled(TensorType.Q6_K, 2, GROUPED=True, BIAS=False, WIDTH=4)
    compiled(TensorType.BF16, 2, GROUPED=False, BIAS=False, WIDTH=2)


if __name__ == "__main__":
    main()
