"""Kernels of a GPU alone: rates of the device, equal bits, matmuls beside torch's, attention.

    python benchmarks/gpu_kernels.py [rates] [bits] [products] [attention]

Times are medians of replays of a CUDA graph, so no time of the host counts. The weights of a graph
are more than the L2 cache holds. Sizes are those of Qwen3-8B, in BF16 and with f16 pages. torch
chooses an algorithm for each number of tokens, so its bits depend on it.
"""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from heddle.extensions.torch.attention import Shape
from heddle.extensions.torch.kernels import attention, matmul
from heddle.extensions.torch.kernels.operands import Operand
from heddle.extensions.torch.layout import SPLIT
from heddle.extensions.torch.weights import Matrix
from heddle.state import PAGE_TOKENS
from heddle.weights.tensor_types import TensorType
from write_dense import HEAD_DIM, SIZES, VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, HEADS, KV_HEADS, HIDDEN = SIZES["8b"]
MATRICES = {
    "q, k, v": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH),
    "o": (WIDTH, HEADS * HEAD_DIM),
    "gate, up": (2 * HIDDEN, WIDTH),
    "down": (WIDTH, HIDDEN),
    "output": (VOCABULARY, WIDTH),
}
"""Rows and columns."""

CACHE = 256 << 20
"""Bytes that no L2 cache holds."""

NEVER = 1 << 60


def seconds(works: Sequence[Callable[[], Any]], replays: int = 15) -> float:
    """The median time of one of the works, which a graph does one after the other."""
    for work in works[:2]:
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        for work in works:
            work()
        graph.capture_end()
    graph.replay()
    times = []
    for _ in range(replays):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended) / 1e3 / len(works))
    return sorted(times)[len(times) // 2]


def rates() -> None:
    """What the device can do."""
    print(torch.cuda.get_device_name(), torch.__version__)
    one = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(one)
    print(
        f"copy of 1 GiB: {2 * one.nbytes / seconds([lambda: other.copy_(one)] * 4) / 1e12:.2f} TB/s"
    )
    print(f"sum of 1 GiB: {one.nbytes / seconds([one.sum] * 4) / 1e12:.2f} TB/s")
    left, right = torch.randn(2, 8192, 8192, device="cuda").bfloat16()
    time = seconds([lambda: left @ right] * 4)
    print(f"product of 8192 x 8192, random numbers: {2 * 8192**3 / time / 1e12:.0f} TFLOP/s")


def multiplied(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    matrix = Matrix((weights,), TensorType.BF16, weights.shape[1])
    return matmul.multiply(Operand(x, None), matrix)


def with_values(module: Any, values: dict[str, Any], work: Callable[[], torch.Tensor]) -> Any:
    """The result of the work while variables of a module have other values."""
    kept = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        return work()
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


def bits() -> None:
    """Which share of results is equal in programs of all sizes, and in torch's matmuls."""
    for columns in (WIDTH, HIDDEN):
        x, weights = (torch.randn(512, columns, device="cuda").bfloat16() for _ in range(2))
        right = x.double() @ weights.double().T
        size = x.double().abs() @ weights.double().abs().T
        found = {}
        for program in matmul._OF_HALVES:
            alone = {"_programs": lambda *_, own=program: iter([own]), "_MANY_TOKENS": NEVER}
            matmul._program_of.cache_clear()
            found[str(program)] = with_values(matmul, alone, partial(multiplied, x, weights))
        matmul._program_of.cache_clear()
        many = {"_MANY_TOKENS": 16}
        found["descriptors"] = with_values(matmul, many, partial(multiplied, x, weights))
        for tokens in (16, 64, 512):
            own = torch.mm(x[:tokens], weights.T, out_dtype=torch.float32)
            found[f"torch, {tokens} tokens"] = own
        first = next(iter(found.values()))
        for name, result in found.items():
            rows = len(result)
            same = (result == first[:rows]).float().mean()
            error = ((result.double() - right[:rows]).abs() / size[:rows]).max()
            print(f"{columns} columns, {name}: {same:.4f} equal, error {error:.1e}")


def products() -> None:
    """Times of matmuls beside torch's."""
    for tokens in (16, 64, 512, 2048, 4096):
        for name, (rows, columns) in MATRICES.items():
            if name == "output" and tokens > 64:
                continue
            copies = 2 + CACHE // (2 * rows * columns)
            weights = [torch.randn(rows, columns, device="cuda").bfloat16() for _ in range(copies)]
            x = torch.randn(tokens, columns, device="cuda").bfloat16()
            both = {
                "Heddle": seconds([partial(multiplied, x, one) for one in weights]),
                "torch": seconds([partial(torch.matmul, x, one.T) for one in weights]),
            }
            line = f"{tokens} tokens, {name}:"
            for who, time in both.items():
                rate = f"{2 * rows * columns / time / 1e12:.2f} TB/s"
                if tokens > 64:
                    rate = f"{2 * tokens * rows * columns / time / 1e12:.0f} TFLOP/s"
                line += f" {who} {1e6 * time:.1f} us, {rate};"
            print(line.rstrip(";"), flush=True)


class Queries(NamedTuple):
    """Queries of a sequence from a position on, whose pages begin with page `first`."""

    start: int
    number: int
    first: int


def layout_of(chunks: Sequence[Queries], of_tile: int, padding: int = 0) -> Any:
    """The parts of a `Layout` that attention reads, with so many tiles of padding."""
    splits = -(-max(chunk.start + chunk.number for chunk in chunks) // SPLIT)
    pages = splits * SPLIT // PAGE_TOKENS
    queries, rows, ends, table, row = [], [], [], [], 0
    for start, count, first in chunks:
        for begin in range(0, count, of_tile):
            used, rest = min(of_tile, count - begin), max(0, begin + of_tile - count)
            queries.append([*range(start + begin, start + begin + used), *[-1] * rest])
            rows += [*range(row + begin, row + begin + used), *[0] * rest]
            ends.append(start + count)
            table.append([*range(first, first + pages)])
        row += count
    for _ in range(padding):
        queries.append([-1] * of_tile)
        rows += [0] * of_tile
        ends.append(0)
        table.append([0] * pages)
    made = (torch.tensor(values, device="cuda") for values in (queries, rows, ends, table))
    places = dict(zip(("queries", "tile_rows", "ends", "tables"), made, strict=True))
    return SimpleNamespace(**{**places, "tables": [places["tables"]]}, splits=splits)


class Pages:
    """Random keys and values of many sequences."""

    def __init__(self, pages: int) -> None:
        size = pages, PAGE_TOKENS, KV_HEADS * HEAD_DIM
        made = (torch.randn(size, dtype=torch.float16, device="cuda") for _ in range(2))
        self.keys, self.values = (SimpleNamespace(fields=(one,)) for one in made)
        self.shape = Shape(HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM, HEAD_DIM**-0.5)

    def attended(self, q: Operand, layout: Any) -> torch.Tensor:
        return attention.attend(q, self.keys, self.values, layout, 0, self.shape, None)  # type: ignore[arg-type]


def queries_of(tokens: int) -> Operand:
    values = torch.randn(tokens * HEADS, HEAD_DIM, device="cuda").half()
    return Operand(values, torch.ones(len(values), device="cuda"))


def attend() -> None:
    """Whether all ways of attention have equal bits, and the times of decode and of prompts."""
    of_sequence = 512
    pages = Pages(64 * of_sequence + 16)
    q, first = queries_of(300), None
    for least in (NEVER, 0):
        for of_tile in (4, 16):
            layout = layout_of([Queries(700, 300, 3)], of_tile)
            own = {"_PROGRAMS": least}
            found = with_values(attention, own, partial(pages.attended, q, layout))
            first = found if first is None else first
            way = "whole tiles" if least == 0 else "splits"
            same = (found == first).float().mean()
            print(f"attention, {way} of {of_tile} queries: {same:.6f} equal")
    for streams in (1, 64):
        for depth in (128, 1024, 16_000):
            chunks = [Queries(depth, 1, of_sequence * number) for number in range(streams)]
            layout, q = (
                layout_of(chunks, 4, 16 - streams if streams < 16 else 0),
                queries_of(streams),
            )
            time = seconds([partial(pages.attended, q, layout)] * 8)
            rate = streams * depth * 4 * KV_HEADS * HEAD_DIM / time / 1e12
            print(f"decode, {streams} at {depth}: {1e6 * time:.1f} us, {rate:.2f} TB/s", flush=True)
    for start, count in ((0, 512), (0, 2048), (0, 4096), (12_000, 2048)):
        layout, q = layout_of([Queries(start, count, 3)], 16), queries_of(count)
        time = seconds([partial(pages.attended, q, layout)] * 4)
        rate = 4 * HEADS * HEAD_DIM * count * (start + count / 2) / time / 1e12
        print(f"prompt, {count} at {start}: {1e6 * time:.1f} us, {rate:.0f} TFLOP/s", flush=True)


PARTS = {"rates": rates, "bits": bits, "products": products, "attention": attend}


def main() -> None:
    with torch.inference_mode():
        for name in sys.argv[1:] or PARTS:
            PARTS[name]()


if __name__ == "__main__":
    main()
