"""Makes a model that sees of the default model: eyes of random weights, and tokens for pictures.

Nobody knows what the model says of a picture, but it says the same of equal pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

from gguf_writer import Tensor, write_gguf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKENS = {
    "<gh_stars>": "<image>",
    "<filename>": "<fake_token_around_image>",
    "<file_sep>": "<global-img>",
}
"""Control tokens of the default model that mean something else here."""

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(source: Path, path: Path) -> Path:
    """Write the model of `source` with tokens and a template for pictures."""
    reader = gguf.GGUFReader(source)
    found: dict[str, object] = {}
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            found[key] = field.contents()
    pieces = found["tokenizer.ggml.tokens"]
    assert isinstance(pieces, list)
    assert set(TOKENS) <= set(pieces)
    found["tokenizer.ggml.tokens"] = [TOKENS.get(one, one) for one in pieces]
    found["tokenizer.chat_template"] = TEMPLATE
    typed = {key: _typed(key, value, reader) for key, value in found.items()}
    tensors = (
        Tensor(
            one.name,
            one.data.tobytes(),
            tuple(int(n) for n in reversed(one.shape)),
            int(one.tensor_type),
        )
        for one in reader.tensors
    )
    return write_gguf(path, typed, tensors)


def _typed(key: str, value: object, reader: gguf.GGUFReader) -> object:
    kinds = reader.fields[key].types
    if kinds[0] == gguf.GGUFValueType.ARRAY and kinds[-1] != gguf.GGUFValueType.STRING:
        return np.array(value, {5: np.int32, 6: np.float32}[int(kinds[-1])])
    return value


def write_eyes(
    path: Path, *, width: int = 64, layers: int = 2, heads: int = 4, side: int = 64, patch: int = 8,
    merge: int = 4, text_width: int = 576, seed: int = 7,
) -> Path:  # fmt: skip
    """Write eyes of Idefics 3 with random weights as an mmproj file."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float16)

    def tensors() -> Iterator[Tensor]:
        patches = matrix(width, 3 * patch**2).reshape(width, 3, patch, patch)
        yield Tensor.of("v.patch_embd.weight", patches)
        yield Tensor.of("v.patch_embd.bias", np.zeros(width, np.float32))
        places = (random.standard_normal(((side // patch) ** 2, width)) / 8).astype(np.float32)
        yield Tensor.of("v.position_embd.weight", places)
        for name in [f"v.blk.{i}.{part}" for i in range(layers) for part in ("ln1", "ln2")]:
            yield Tensor.of(f"{name}.weight", np.ones(width, np.float32))
            yield Tensor.of(f"{name}.bias", np.zeros(width, np.float32))
        for i in range(layers):
            sizes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (width, width))
            sizes |= {"ffn_up": (4 * width, width), "ffn_down": (width, 4 * width)}
            for part, (rows, columns) in sizes.items():
                yield Tensor.of(f"v.blk.{i}.{part}.weight", matrix(rows, columns))
                yield Tensor.of(f"v.blk.{i}.{part}.bias", np.zeros(rows, np.float32))
        yield Tensor.of("v.post_ln.weight", np.ones(width, np.float32))
        yield Tensor.of("v.post_ln.bias", np.zeros(width, np.float32))
        yield Tensor.of("mm.model.fc.weight", matrix(text_width, merge**2 * width) / 16)

    metadata: dict[str, object] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "idefics3",
        "clip.vision.image_size": side,
        "clip.vision.patch_size": patch,
        "clip.vision.embedding_length": width,
        "clip.vision.feed_forward_length": 4 * width,
        "clip.vision.projection_dim": text_width,
        "clip.vision.block_count": layers,
        "clip.vision.attention.head_count": heads,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_mean": np.float32([0.5, 0.5, 0.5]),
        "clip.vision.image_std": np.float32([0.5, 0.5, 0.5]),
        "clip.use_gelu": True,
        "clip.vision.projector.scale_factor": merge,
        "clip.vision.preproc_image_size": 4 * side,
    }
    return write_gguf(path, metadata, tensors())
