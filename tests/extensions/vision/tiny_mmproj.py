"""Writes the eyes of a tiny model as llama.cpp's converter does: an mmproj file.

The names come from llama.cpp's own table in the package `gguf`; what the converter changes beside
names is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

from gguf_writer import Tensor, write_gguf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

_TYPES = {
    "idefics3": "idefics3",
    "qwen2_vl": "qwen2vl_merger",
    "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen3_vl": "qwen3vl_merger",
    "gemma3": "gemma3",
    "gemma4": "gemma4v",
    "internvl": "internvl",
    "pixtral": "pixtral",
    "mistral3": "pixtral",
    "lfm2_vl": "lfm2",
    "llava": "mlp",
    "llava_next": "mlp",
    "llama4": "llama4",
    "glm4v": "glm4v",
}
_SILU = ("qwen2_5_vl", "glm4v")
_QUICK = ("qwen2_vl", "llava")
_SQUARES = ("idefics3", "gemma3", "gemma4", "lfm2_vl", "llama4", "internvl")
_EPS = {"glm4v": 1e-5, "pixtral": 1e-5, "mistral3": 1e-5, "llama4": 1e-5, "llava": 1e-5}
_DIFFERENT = {
    "visual.merger.linear_fc1": "mm.0",
    "visual.merger.linear_fc2": "mm.2",
    "visual.merger.norm": "v.post_ln",
    "visual.deepstack_merger_list.0.norm": "v.deepstack.0.norm",
    "visual.deepstack_merger_list.0.linear_fc1": "v.deepstack.0.fc1",
    "visual.deepstack_merger_list.0.linear_fc2": "v.deepstack.0.fc2",
}
"""Names that the converter writes itself: of Qwen3-VL."""
KINDS = tuple(_TYPES)


def metadata(model: TinyEyes) -> dict[str, object]:
    """The keys of the file."""
    vision = model.vision
    layers = vision.get("num_hidden_layers", vision.get("depth"))
    width = vision["embed_dim"] if model.name == "qwen2_vl" else vision["hidden_size"]
    found: dict[str, object] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": _TYPES[model.name],
        "clip.vision.image_size": _side(vision.get("image_size", 560)),
        "clip.vision.patch_size": _side(vision["patch_size"]),
        "clip.vision.embedding_length": width,
        # Of Qwen2-VL the converter writes the width of the text model.
        "clip.vision.feed_forward_length": vision.get("intermediate_size", 64),
        "clip.vision.projection_dim": model.text.width,
        "clip.vision.block_count": layers,
        "clip.vision.attention.head_count": vision.get(
            "num_attention_heads", vision.get("num_heads")
        ),
        "clip.vision.attention.layer_norm_epsilon": _EPS.get(model.name, 1e-6),
        "clip.vision.image_mean": np.float32([0.5, 0.5, 0.5]),
        "clip.vision.image_std": np.float32([0.5, 0.5, 0.5]),
        "clip.use_silu" if model.name in _SILU else "clip.use_gelu": model.name not in _QUICK,
    }
    if model.name in _SQUARES:
        found["clip.vision.projector.scale_factor"] = 2
    elif model.name not in ("pixtral", "llava", "llava_next"):
        found["clip.vision.spatial_merge_size"] = 2
    if model.name == "qwen2_5_vl":
        found |= {"clip.vision.n_wa_pattern": 2, "clip.vision.window_size": 16}
    if model.name == "llava_next":
        found["clip.vision.feature_layer"] = np.array([1, 2], np.int32)
    if model.name == "qwen3_vl":
        found["clip.vision.is_deepstack_layers"] = np.array([True, False])
    return found


def _side(value: object) -> object:
    return value[0] if isinstance(value, list) else value


def tensors(model: TinyEyes) -> Iterator[Tensor]:
    """The tensors of the file."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 4)
    for label, values in model.eyes_state().items():
        name = label if model.name == "idefics3" else label.removeprefix("model.")
        if model.name == "internvl":
            name = _of_internvl(label)
        elif label == "image_newline":
            name = "model.image_newline"
        name = name.replace("_weight", ".weight")
        if model.name == "gemma4":
            name = _of_gemma4(label)
        if model.name == "llama4" and "post_attention_layernorm" in name:
            # Gemma 4 has taken the name in the table.
            name = name.replace("vision_model.model.", "model.vision_model.encoder.")
            name = name.replace("post_attention_layernorm", "layer_norm2")
        if model.name in ("llava", "llava_next") and ".linear_" in name:
            # the converter of those days
            name = name.replace("linear_1", "linear_0")
        if model.name == "llama4" and name == "multi_modal_projector.linear_1.weight":
            name = "model.connector.modality_projection.proj.weight"  # becomes mm.model.fc
        for old, changed in _changed(model, name, values):
            stem, _, kind = old.rpartition(".")
            if kind not in ("weight", "bias") and not kind.startswith(("input_m", "output_m")):
                stem, kind = old, ""
            stored = _DIFFERENT.get(stem) or table.get_name(stem)
            assert stored is not None, old
            if stored == "v.position_embd" or stored.endswith((".ls1", ".ls2")):
                kind = "weight"
            yield Tensor.of(f"{stored}.{kind}" if kind else stored, np.ascontiguousarray(changed))
            if stored == "v.patch_embd" and values.ndim == 5:
                second = np.ascontiguousarray(values[:, :, 1])
                yield Tensor.of(f"{stored}.weight.1", second)


def _of_internvl(label: str) -> str:
    """The name that the table of names knows. The projection has that of the first folders."""
    for part, number in (("layer_norm", 0), ("linear_1", 1), ("linear_2", 3)):
        label = label.replace(f"multi_modal_projector.{part}", f"mlp1.{number}")
    return label if label.startswith("mlp1") else f"model.{label}"


def _of_gemma4(label: str) -> str:
    """The name that the table of names knows."""
    name = label.replace("model.vision_tower.encoder.", "vision_model.model.")
    if ".self_attn." in name and "_norm" not in name and ".linear" not in name:
        name = name.replace("_proj.", "_proj.linear.")  # of a limit
    return name.replace(".linear.", ".") if ".mlp." in name else name


def _changed(model: TinyEyes, name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """A tensor as the converter changes it, or its parts."""
    if ".qkv." in name and model.name in ("qwen2_vl", "qwen2_5_vl"):
        for part, rows in zip("qkv", np.split(values, 3), strict=True):
            yield name.replace("qkv", part), rows
    elif values.ndim == 5:
        yield name, values[:, :, 0]
    elif model.name in ("pixtral", "mistral3") and name.endswith(
        ("q_proj.weight", "k_proj.weight")
    ):
        halves = values.reshape(2, 2, -1, values.shape[1])
        yield name, halves.swapaxes(1, 2).reshape(values.shape)
    elif "soft_emb_norm" in name:
        yield name, values + np.float32(1)
    elif model.name == "gemma4" and name.endswith("input_proj.weight"):
        yield name, values.reshape(len(values), 4, 4, 3).transpose(0, 3, 1, 2)
    elif model.name == "gemma4" and not values.shape:
        yield name, values.reshape(1)
    elif model.name == "lfm2_vl" and name.endswith("patch_embedding.weight"):
        yield name, values.reshape(len(values), 4, 4, 3).transpose(0, 3, 1, 2)
    else:
        yield name, values


def write_mmproj(path: Path, model: TinyEyes, **changes: object) -> Path:
    """Write the eyes as an mmproj file; `changes` replace keys, None drops one."""
    found = metadata(model) | changes
    kept = {key: value for key, value in found.items() if value is not None}
    return write_gguf(path, kept, tensors(model))
