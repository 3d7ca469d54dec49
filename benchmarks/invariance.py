"""The cost of equal bits in any company, on a GPU: matmuls alone.

    python benchmarks/invariance.py [--device cuda] [--tokens 1,16,64,512] [--scale 1]

For each matrix of a layer of Qwen3-8B in BF16, Heddle's kernel and torch's matmul multiply the same
tokens in turn. torch chooses an algorithm for each number of tokens, so its bits depend on it. The
table has the time of a layer's matrices, medians of rounds. `--scale 32` divides all sizes, to try
the script without a GPU (Triton's interpreter, TRITON_INTERPRET=1): then times mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import torch

from heddle.extensions.torch.kernels.matmul import multiply
from heddle.extensions.torch.kernels.operands import operand
from heddle.extensions.torch.tiles import TILE
from heddle.extensions.torch.weights import Matrix
from heddle.weights.tensor_types import TensorType
from write_dense import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = (
    *[(HEADS * HEAD_DIM, WIDTH)],
    *[(KV_HEADS * HEAD_DIM, WIDTH)] * 2,
    *[(WIDTH, HEADS * HEAD_DIM)],
    *[(HIDDEN, WIDTH)] * 2,
    *[(WIDTH, HIDDEN)],
)
"""Rows and columns of a layer's matrices."""

ROUNDS, REPEATS = 9, 20


def seconds(work: Callable[[], torch.Tensor]) -> float:
    """Time of one call, among several whose launches overlap."""
    began = time.perf_counter()
    for _ in range(REPEATS):
        result = work()
    result.flatten()[0].item()  # waits
    return (time.perf_counter() - began) / REPEATS


def compare(device: torch.device, tokens: int, scale: int) -> tuple[float, float]:
    """Seconds of a layer's matrices: Heddle's kernel and torch's matmul."""
    ours = theirs = 0.0
    for rows, columns in SHAPES:
        weights = torch.randn(rows // scale, columns // scale, device=device).bfloat16()
        matrix = Matrix((weights,), TensorType.BF16, columns // scale)
        x = torch.randn(-(-tokens // TILE) * TILE, columns // scale, device=device)
        own, plain = operand(x, torch.bfloat16), x[:tokens].bfloat16()
        samples: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            first = seconds(lambda own=own, matrix=matrix: multiply(own, matrix))  # type: ignore[misc]
            second = seconds(lambda plain=plain, weights=weights: plain @ weights.T)  # type: ignore[misc]
            samples.append((first, second))
        ours += statistics.median(sample[0] for sample in samples[1:])
        theirs += statistics.median(sample[1] for sample in samples[1:])
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", default="1,16,64,512")
    parser.add_argument("--scale", type=int, default=1)
    given = parser.parse_args()
    print("| tokens | Heddle, ms | torch, ms | Heddle / torch |\n|---|---|---|---|")
    for tokens in map(int, given.tokens.split(",")):
        ours, theirs = compare(torch.device(given.device), tokens, given.scale)
        print(f"| {tokens} | {1e3 * ours:.3f} | {1e3 * theirs:.3f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
