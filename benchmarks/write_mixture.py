"""Writes a random mixture of experts in the proportions of Qwen3-30B-A3B, in Q4_K.

    pip install gguf && python benchmarks/write_mixture.py mixture.gguf [--layers 7] [--skew 0]
    heddle bench mixture.gguf; python benchmarks/against_llamacpp.py mixture.gguf

A layer has the original's sizes: width 2048, 32 query and 4 key/value heads of 128, 128 experts of
width 768, 8 used experts. The file has fewer layers and tokens: 7 of 48 layers and 20,705 of
151,936 tokens take 2.5 GB, so layers and output matrix keep their shares of a step. The answers are
noise.

The file routes almost uniformly. `--skew` adds biases to router logits that fall from the first
expert to the last, so that tokens share experts. llama.cpp refuses a file with these biases.
"""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np

from random_vocabulary import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 2048, 32, 4, 128
EXPERTS, USED, HIDDEN = 128, 8, 768
CONTEXT = 8192
_BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("codes", "u1", 128)])
_ALL_32 = [0xA0] * 8 + [0] * 4
"""Scales and minima of a Q4_K block that are all 32."""

Tensor = tuple[str, tuple[int, ...], gguf.GGMLQuantizationType]


def tensors(layers: int, vocabulary: int, skew: float) -> Iterator[Tensor]:
    """Names, shapes and types in the order of the file."""
    q4, f32 = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.F32
    yield "token_embd.weight", (vocabulary, WIDTH), q4
    yield "output_norm.weight", (WIDTH,), f32
    yield "output.weight", (vocabulary, WIDTH), q4
    q_width, kv_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for layer in range(layers):
        shapes = {
            "attn_norm": (WIDTH,),
            "attn_q": (q_width, WIDTH),
            "attn_k": (kv_width, WIDTH),
            "attn_v": (kv_width, WIDTH),
            "attn_output": (WIDTH, q_width),
            "attn_q_norm": (HEAD_DIM,),
            "attn_k_norm": (HEAD_DIM,),
            "ffn_norm": (WIDTH,),
            "ffn_gate_inp": (EXPERTS, WIDTH),
            "ffn_gate_exps": (EXPERTS, HIDDEN, WIDTH),
            "ffn_up_exps": (EXPERTS, HIDDEN, WIDTH),
            "ffn_down_exps": (EXPERTS, WIDTH, HIDDEN),
        }
        for name, shape in shapes.items():
            is_float = len(shape) == 1 or name == "ffn_gate_inp"
            yield f"blk.{layer}.{name}.weight", shape, f32 if is_float else q4
        if skew:
            yield f"blk.{layer}.ffn_gate_inp.bias", (EXPERTS,), f32


def values(rng: np.random.Generator, tensor: Tensor, skew: float) -> NDArray[np.generic]:
    """Random content whose products keep the size of their input."""
    name, shape, kind = tensor
    if name.endswith(".bias"):
        return np.linspace(skew, 0, EXPERTS, dtype=np.float32)
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    deviation = 1 / np.sqrt(shape[-1])
    if kind == gguf.GGMLQuantizationType.F32:
        return rng.normal(0, deviation, shape).astype(np.float32)
    blocks = np.zeros(prod(shape) // 256, _BLOCK)
    step = deviation / 4.6  # the deviation of codes from 0 to 15
    blocks["d"], blocks["dmin"], blocks["scales"] = step / 32, 7.5 * step / 32, _ALL_32
    blocks["codes"] = rng.integers(0, 256, blocks["codes"].shape, np.uint8)
    return blocks.view(np.uint8).reshape(*shape[:-1], -1)


def write(path: Path, layers: int, skew: float) -> None:
    """Write the model to `path`."""
    tokens, merges = pieces()
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_name(f"random mixture of {layers} layers")
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_expert_feed_forward_length(HIDDEN)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_eos_token_id(0)
    every = list(tensors(layers, len(tokens), skew))
    for name, shape, kind in every:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        stored = np.dtype(np.float32 if kind == gguf.GGMLQuantizationType.F32 else np.uint8)
        last = shape[-1] if stored == np.float32 else shape[-1] // block * size
        nbytes = prod(shape) // block * size
        raw = None if stored == np.float32 else kind
        writer.add_tensor_info(name, [*shape[:-1], last], stored, nbytes, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for tensor in every:
        writer.write_tensor_data(values(rng, tensor, skew))
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--skew", type=float, default=0.0, help="bias of the first expert's logit")
    arguments = parser.parse_args()
    write(arguments.path, arguments.layers, arguments.skew)


if __name__ == "__main__":
    main()
