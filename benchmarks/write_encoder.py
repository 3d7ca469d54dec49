"""Writes a GGUF file of a random BERT, in the sizes of a published model.

    python benchmarks/write_encoder.py bge-small FILE.gguf [--type q8_0]

Its vocabulary is random, and that of bge-m3 is smaller than the published one: a lookup takes the
same time.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import gguf
import numpy as np

VOCABULARY = 30_522
SPECIAL = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]"}


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    inner: int
    heads: int
    context: int


MODELS = {
    "bge-small": Sizes(12, 384, 1536, 12, 512),
    "bge-m3": Sizes(24, 1024, 4096, 16, 8192),
}


def write(sizes: Sizes, path: str, type: gguf.GGMLQuantizationType) -> None:
    """Write the file. Matrices have `type`, vectors are float32."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.width)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_block_count(sizes.layers)
    writer.add_head_count(sizes.heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([SPECIAL.get(id, f"\u2581w{id}") for id in range(VOCABULARY)])
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    writer.add_token_types([kinds[id in SPECIAL] for id in range(VOCABULARY)])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(101)
    writer.add_eos_token_id(102)
    writer.add_unk_token_id(100)
    writer.add_sep_token_id(102)
    writer.add_pad_token_id(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = (random.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(values, type), raw_dtype=type)

    def vector(name: str, width: int, value: float) -> None:
        writer.add_tensor(name, np.full(width, value, np.float32))

    width, inner = sizes.width, sizes.inner
    matrix("token_embd.weight", VOCABULARY, width)
    positions = random.standard_normal((sizes.context, width)).astype(np.float32)
    writer.add_tensor("position_embd.weight", positions)
    writer.add_tensor("token_types.weight", random.standard_normal((2, width)).astype(np.float32))
    vector("token_embd_norm.weight", width, 1.0)
    vector("token_embd_norm.bias", width, 0.0)
    for i in range(sizes.layers):
        shapes = {f"attn_{part}": (width, width) for part in ("q", "k", "v", "output")}
        shapes |= {"ffn_up": (inner, width), "ffn_down": (width, inner)}
        for name, shape in shapes.items():
            matrix(f"blk.{i}.{name}.weight", *shape)
            vector(f"blk.{i}.{name}.bias", shape[0], 0.01)
        for name in ("attn_output_norm", "layer_output_norm"):
            vector(f"blk.{i}.{name}.weight", width, 1.0)
            vector(f"blk.{i}.{name}.bias", width, 0.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("path")
    parser.add_argument("--type", choices=["q8_0", "f16"], default="q8_0")
    arguments = parser.parse_args()
    type = gguf.GGMLQuantizationType[arguments.type.upper()]
    write(MODELS[arguments.model], arguments.path, type)


if __name__ == "__main__":
    main()
