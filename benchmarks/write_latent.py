"""Writes a random model with latent attention in the proportions of DeepSeek-V2-Lite, in Q8_0.

    pip install gguf && python benchmarks/write_latent.py latent.gguf [--layers 8]
    heddle bench latent.gguf

Attention has the original's sizes: 16 heads, a latent of 512 elements, 64 rotated ones, heads with
keys of 128 and values of 128. The hidden state is half as wide (1,024). A layer has 16 experts of
512, of which a token uses 4, and a shared one; the first layer is dense. 8 layers and 20,705 tokens
are 0.29 B parameters, of which 0.15 B compute a token. The answers are noise.
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

WIDTH, HEADS, RANK, TURNED, KEY, VALUE = 1024, 16, 512, 64, 128, 128
EXPERTS, USED, HIDDEN, DENSE = 16, 4, 512, 2816
CONTEXT = 16_384
_BLOCK = np.dtype([("d", "<f2"), ("codes", "i1", 32)])


def tensors(layers: int, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the order of the file."""
    yield "token_embd.weight", (vocabulary, WIDTH)
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (vocabulary, WIDTH)
    for layer in range(layers):
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": (WIDTH,),
            "attn_q": (HEADS * (KEY + TURNED), WIDTH),
            "attn_kv_a_mqa": (RANK + TURNED, WIDTH),
            "attn_kv_a_norm": (RANK,),
            "attn_k_b": (HEADS, RANK, KEY),
            "attn_v_b": (HEADS, VALUE, RANK),
            "attn_output": (WIDTH, HEADS * VALUE),
            "ffn_norm": (WIDTH,),
        }
        hidden = HIDDEN if layer else DENSE
        of_all = "_shexp" if layer else ""
        shapes |= {f"ffn_{part}{of_all}": (hidden, WIDTH) for part in ("gate", "up")}
        shapes[f"ffn_down{of_all}"] = (WIDTH, hidden)
        if layer:
            shapes["ffn_gate_inp"] = (EXPERTS, WIDTH)
            shapes |= {f"ffn_{part}_exps": (EXPERTS, HIDDEN, WIDTH) for part in ("gate", "up")}
            shapes["ffn_down_exps"] = (EXPERTS, WIDTH, HIDDEN)
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", shape


def write(path: Path, layers: int) -> None:
    """Write the model to `path`."""
    tokens, merges = pieces()
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_name(f"random model with latents, {layers} layers")
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(DENSE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_kv_lora_rank(RANK)
    writer.add_key_length(RANK + TURNED)
    writer.add_value_length(RANK)
    writer.add_key_length_mla(KEY + TURNED)
    writer.add_value_length_mla(VALUE)
    writer.add_rope_dimension_count(TURNED)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(len(tokens))
    writer.add_leading_dense_block_count(1)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(HIDDEN)
    writer.add_expert_weights_scale(1.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_eos_token_id(0)
    rng = np.random.default_rng(0)
    for name, shape in tensors(layers, len(tokens)):
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
            continue
        deviation = 1 / np.sqrt(shape[-1])
        if name.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(name, rng.normal(0, deviation, shape).astype(np.float32))
            continue
        blocks = np.zeros(prod(shape) // 32, _BLOCK)
        blocks["d"] = deviation / 73.6  # the deviation of codes from -127 to 127
        blocks["codes"] = rng.integers(-127, 128, blocks["codes"].shape, np.int8)
        rows = blocks.view(np.uint8).reshape(*shape[:-1], -1)
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    arguments = parser.parse_args()
    write(arguments.path, arguments.layers)


if __name__ == "__main__":
    main()
