"""Writes a random hybrid in the proportions of Qwen3-Next, with about 0.5 B parameters in Q8_0.

    pip install gguf && python benchmarks/write_hybrid.py hybrid.gguf
    python benchmarks/write_hybrid.py dense.gguf --dense
    heddle bench hybrid.gguf; python benchmarks/against_llamacpp.py hybrid.gguf

The layers, widths and heads are half of Qwen3-Next's: 24 layers of width 1024, of which every
fourth has gated attention with 8 query heads and 1 key/value head of 256. The others are gated
delta nets with 8 key heads and 16 value heads of 128. Feed-forward layers are dense. `--dense`
writes a Qwen3 of the same size: 16 query and 4 key/value heads of 128 in every layer, and wider
feed-forward layers. The answers are noise.
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

LAYERS, PERIOD, WIDTH = 24, 4, 1024
HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 8, 1, 256, 3584
KEY_HEADS, VALUE_HEADS, STATE_DIM, TAPS = 8, 16, 128, 4
DENSE_HEADS, DENSE_KV_HEADS, DENSE_HEAD_DIM, DENSE_HIDDEN = 16, 4, 128, 4480
CONTEXT = 8192
_BLOCK = np.dtype([("d", "<f2"), ("codes", "i1", 32)])

Shapes = dict[str, tuple[int, ...]]


def mixer(layer: int) -> Shapes:
    """The tensors of a layer's mixer in the hybrid."""
    if (layer + 1) % PERIOD == 0:
        return attention(2 * HEADS, HEADS, KV_HEADS, HEAD_DIM)
    keys, values = KEY_HEADS * STATE_DIM, VALUE_HEADS * STATE_DIM
    return {
        "attn_qkv.weight": (2 * keys + values, WIDTH),
        "attn_gate.weight": (values, WIDTH),
        "ssm_beta.weight": (VALUE_HEADS, WIDTH),
        "ssm_alpha.weight": (VALUE_HEADS, WIDTH),
        "ssm_conv1d.weight": (2 * keys + values, TAPS),
        "ssm_dt.bias": (VALUE_HEADS,),
        "ssm_a": (VALUE_HEADS,),
        "ssm_norm.weight": (STATE_DIM,),
        "ssm_out.weight": (WIDTH, values),
    }


def attention(rows: int, heads: int, kv_heads: int, dim: int) -> Shapes:
    """The tensors of attention whose matrix of queries has `rows` heads."""
    return {
        "attn_q.weight": (rows * dim, WIDTH),
        "attn_k.weight": (kv_heads * dim, WIDTH),
        "attn_v.weight": (kv_heads * dim, WIDTH),
        "attn_output.weight": (WIDTH, heads * dim),
        "attn_q_norm.weight": (dim,),
        "attn_k_norm.weight": (dim,),
    }


def tensors(vocabulary: int, *, dense: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in the order of the file."""
    yield "token_embd.weight", (vocabulary, WIDTH)
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (vocabulary, WIDTH)
    hidden = DENSE_HIDDEN if dense else HIDDEN
    norm = "ffn_norm" if dense else "post_attention_norm"
    own = attention(DENSE_HEADS, DENSE_HEADS, DENSE_KV_HEADS, DENSE_HEAD_DIM)
    for layer in range(LAYERS):
        shapes = {"attn_norm.weight": (WIDTH,), **(own if dense else mixer(layer))}
        shapes |= {
            f"{norm}.weight": (WIDTH,),
            "ffn_gate.weight": (hidden, WIDTH),
            "ffn_up.weight": (hidden, WIDTH),
            "ffn_down.weight": (WIDTH, hidden),
        }
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}", shape


def is_float(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the tensor is stored in float32."""
    return len(shape) == 1 or "conv1d" in name


def values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Random content whose products keep the size of their input."""
    if name.endswith("ssm_a"):
        return rng.uniform(-1, -0.01, shape).astype(np.float32)
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    deviation = 1 / np.sqrt(shape[-1])
    if is_float(name, shape):
        return rng.normal(0, deviation, shape).astype(np.float32)
    blocks = np.zeros(prod(shape) // 32, _BLOCK)
    blocks["d"] = deviation / 73.3  # the deviation of codes from -127 to 127
    blocks["codes"] = rng.integers(-127, 128, blocks["codes"].shape, np.int8)
    return blocks.view(np.uint8).reshape(*shape[:-1], -1)


def _metadata(writer: gguf.GGUFWriter, *, dense: bool) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(DENSE_HIDDEN if dense else HIDDEN)
    writer.add_head_count(DENSE_HEADS if dense else HEADS)
    writer.add_head_count_kv(DENSE_KV_HEADS if dense else KV_HEADS)
    dim = DENSE_HEAD_DIM if dense else HEAD_DIM
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    if dense:
        return
    writer.add_rope_dimension_count(HEAD_DIM // 4)
    writer.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    writer.add_uint32("qwen35.full_attention_interval", PERIOD)
    writer.add_ssm_conv_kernel(TAPS)
    writer.add_ssm_state_size(STATE_DIM)
    writer.add_ssm_inner_size(VALUE_HEADS * STATE_DIM)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_group_count(KEY_HEADS)


def write(path: Path, *, dense: bool) -> None:
    """Write the model to `path`."""
    tokens, merges = pieces()
    writer = gguf.GGUFWriter(path, "qwen3" if dense else "qwen35")
    writer.add_name("random dense model" if dense else "random hybrid")
    _metadata(writer, dense=dense)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_eos_token_id(0)
    rng = np.random.default_rng(0)
    for name, shape in tensors(len(tokens), dense=dense):
        content = values(rng, name, shape)
        kind = None if is_float(name, shape) else gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, content, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--dense", action="store_true", help="a Qwen3 of the same size instead")
    arguments = parser.parse_args()
    write(arguments.path, dense=arguments.dense)


if __name__ == "__main__":
    main()
