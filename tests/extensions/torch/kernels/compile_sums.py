"""Compiles the kernel of running sums for a GPU that need not be there; run as a program."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from heddle.extensions.torch.kernels import sums

H100 = GPUTarget("cuda", 90, 32)


def main() -> None:
    signature = {"y": "*fp64", "x": "*fp64", "columns": "i32", "step": "i32", "BLOCK": "constexpr"}
    source = ASTSource(sums._add_levels, signature, {(4,): sums._BLOCK}, {})
    text = triton.compile(source, target=H100).asm["ptx"]
    assert "fma" not in text, "a fused sum would round otherwise"


if __name__ == "__main__":
    main()
