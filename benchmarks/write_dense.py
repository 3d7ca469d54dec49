"""Writes a random dense model in the shape of Qwen3-8B, in BF16 or in the types of Q4_K_M.

    python benchmarks/write_dense.py dense.gguf [--type bf16] [--layers 36] [--sizes 1.5b]
    heddle bench dense.gguf --device cuda --streams 1,64

A layer has the original's sizes: width 4096, 32 query and 8 key/value heads of 128, inner width
12288; with `--sizes 1.5b` those of Qwen2.5-1.5B. The output matrix has the original's 151,936 rows;
tokens behind the first 20,705 are unused. All 36 layers take 16.4 GB in BF16 and 5.0 GB in Q4_K_M,
28 layers of the smaller sizes 1.1 GB. The answers are noise.
"""

from __future__ import annotations

import argparse
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heddle.extensions.quantise.writer import NewTensor, write_gguf
from heddle.weights.tensor_types import TensorType
from random_vocabulary import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

VOCABULARY, CONTEXT, HEAD_DIM = 151_936, 40_960, 128


class Sizes(NamedTuple):
    """Sizes of a layer."""

    width: int
    heads: int
    kv_heads: int
    hidden: int


SIZES = {"8b": Sizes(4096, 32, 8, 12288), "1.5b": Sizes(1536, 12, 2, 8960)}
_POOL = 1 << 22
"""Random values that a file repeats: drawing all of them would take minutes."""

_Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("codes", "u1", 128)])
_Q6_K = np.dtype([("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
_ALL_32 = [0xA0] * 8 + [0] * 4
"""Scales and minima of a Q4_K block that are all 32."""


def shapes(layers: int, sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the order of the file."""
    width, hidden = sizes.width, sizes.hidden
    yield "token_embd.weight", (VOCABULARY, width)
    yield "output_norm.weight", (width,)
    yield "output.weight", (VOCABULARY, width)
    q_width, kv_width = sizes.heads * HEAD_DIM, sizes.kv_heads * HEAD_DIM
    of_layer = {
        "attn_norm": (width,),
        "attn_q": (q_width, width),
        "attn_k": (kv_width, width),
        "attn_v": (kv_width, width),
        "attn_output": (width, q_width),
        "attn_q_norm": (HEAD_DIM,),
        "attn_k_norm": (HEAD_DIM,),
        "ffn_norm": (width,),
        "ffn_gate": (hidden, width),
        "ffn_up": (hidden, width),
        "ffn_down": (width, hidden),
    }
    for layer in range(layers):
        for name, shape in of_layer.items():
            yield f"blk.{layer}.{name}.weight", shape


def type_of(name: str, shape: tuple[int, ...], matrices: str, layers: int) -> TensorType:
    """As llama.cpp's mix Q4_K_M: more bits for the output matrix and for values and down of half
    of the layers."""
    if len(shape) == 1:
        return TensorType.F32
    if matrices == "bf16":
        return TensorType.BF16
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    is_important = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    of_half = name.endswith(("attn_v.weight", "ffn_down.weight")) and is_important
    return TensorType.Q6_K if of_half or name == "output.weight" else TensorType.Q4_K


def content(shape: tuple[int, ...], kind: TensorType) -> NDArray[np.uint8]:
    """Random content whose products keep the size of their input."""
    rng, deviation = np.random.default_rng(0), 1 / np.sqrt(shape[-1])
    if kind is TensorType.F32:
        return np.ones(shape, np.float32).view(np.uint8).reshape(-1)
    if kind is TensorType.BF16:
        values = rng.normal(0, deviation, _POOL).astype(np.float32)
        pool = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    elif kind is TensorType.Q4_K:
        step = deviation / 4.6  # the deviation of codes from 0 to 15
        blocks = np.zeros(_POOL // 256, _Q4_K)
        blocks["d"], blocks["dmin"], blocks["scales"] = step / 32, 7.5 * step / 32, _ALL_32
        blocks["codes"] = rng.integers(0, 256, blocks["codes"].shape, np.uint8)
        pool = blocks.view(np.uint8)
    else:
        step = deviation / 18.5  # the deviation of codes from 0 to 63
        blocks = np.zeros(_POOL // 256, _Q6_K)
        blocks["d"], blocks["scales"] = step / 32, 32
        for part in ("low", "high"):
            blocks[part] = rng.integers(0, 256, blocks[part].shape, np.uint8)
        pool = blocks.view(np.uint8)
    return np.resize(pool, prod(shape) // kind.block_elements * kind.block_bytes)


def metadata(layers: int, sizes: Sizes) -> dict[str, object]:
    """The keys of a GGUF file."""
    tokens, merges = pieces()
    unused = [f"<|unused_{number}|>" for number in range(VOCABULARY - len(tokens))]
    kinds = np.array([1] * len(tokens) + [5] * len(unused), np.int32)
    return {
        "general.architecture": "qwen3",
        "general.name": f"random dense model of {layers} layers",
        "qwen3.block_count": layers,
        "qwen3.context_length": CONTEXT,
        "qwen3.embedding_length": sizes.width,
        "qwen3.feed_forward_length": sizes.hidden,
        "qwen3.attention.head_count": sizes.heads,
        "qwen3.attention.head_count_kv": sizes.kv_heads,
        "qwen3.attention.key_length": HEAD_DIM,
        "qwen3.attention.value_length": HEAD_DIM,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.rope.freq_base": 1e6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens + unused,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.eos_token_id": 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", choices=("bf16", "q4_k_m"), default="bf16")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--sizes", choices=tuple(SIZES), default="8b")
    given = parser.parse_args()
    sizes, tensors = SIZES[given.sizes], []
    for name, shape in shapes(given.layers, sizes):
        kind = type_of(name, shape, given.type, given.layers)
        tensors.append(NewTensor(name, shape, kind, partial(content, shape, kind)))
    write_gguf(given.path, metadata(given.layers, sizes), tensors)


if __name__ == "__main__":
    main()
