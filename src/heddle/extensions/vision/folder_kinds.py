"""Kinds of eyes in Hugging Face folders: names of tensors and keys of config.json.

`transformers` writes the names and has the values that config.json may leave out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.vision.naming import LIMITS, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.weights.huggingface.json_files import Config

KEYS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "heads": "num_attention_heads",
    "norm_eps": "layer_norm_eps",
    "patch": "patch_size",
    "image_size": "image_size",
    "activation": "hidden_act",
}
"""Keys of `vision_config`, by canonical name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderEyes:
    """A kind of eyes in folders.

    Attributes:
        kind: its canonical name.
        names: names of tensors; `@` stands for the encoder, `%` for the projection.
        encoders: what names of the encoder's tensors may begin with.
        projections: what names of the projection's tensors may begin with.
        keys: keys of `vision_config` beside or in place of the usual ones, by canonical name.
        values: values that config.json may leave out.
        read: further hyperparameters from the whole config.json and its `vision_config`. They
            replace the others.
    """

    kind: str
    names: Names
    encoders: tuple[str, ...]
    projections: tuple[str, ...]
    keys: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)
    read: Callable[[Config, Config], Mapping[str, object]] = lambda whole, vision: {}


def _inverse(key: str, value: object) -> object:
    """1 divided by the value, which must be the inverse of a whole number."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if not 2**-16 < number <= 1 or not (1 / number).is_integer():
        raise ModelFileError(f"{key} must be 1 over a whole number, got {value!r}", field=key)
    return int(1 / number)


def _rope_base(vision: Config) -> object:
    rope = vision.get("rope_parameters")
    base = rope.get("rope_theta") if isinstance(rope, dict) else None
    return vision.get("rope_theta", 10_000.0) if base is None else base


def _features(whole: Config, layers: object, key: str, default: int) -> dict[str, object]:
    """The layers after which states are read, from numbers that may count from the last one."""
    listed = whole.get(key, default)
    places = listed if isinstance(listed, list) else [listed]
    if not isinstance(layers, int) or isinstance(layers, bool) or len(places) > 64:
        return {}
    found = []
    for place in places:
        if isinstance(place, bool) or not isinstance(place, int) or abs(place) > layers:
            raise ModelFileError(
                f"{key} {listed!r} names a layer that the eyes lack; they have {layers}", field=key
            )
        found.append(place if place >= 0 else layers + 1 + place)
    several = {"feature_layers": found} if len(found) > 1 else {}
    return {"layers": max(found), **several}


def _side_of_positions(vision: Config, key: str) -> dict[str, object]:
    """The side of a square of so many positions."""
    count = vision.get(key)
    if not isinstance(count, int) or not 0 < count < 1 << 32 or math.isqrt(count) ** 2 != count:
        raise ModelFileError(f"{key} must be a square number, got {count!r}", field=key)
    return {"positions_side": math.isqrt(count)}


# --- SigLIP and CLIP -----------------------------------------------------------------------------

_SIGLIP_LAYER = {
    "attention_norm": "layer_norm1",
    **{f"attention.{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v")},
    "attention.output": "self_attn.out_proj",
    "mlp_norm": "layer_norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
_SIGLIP = Names(
    outside={
        "patches": "@embeddings.patch_embedding",
        "positions": "@embeddings.position_embedding",
        "output_norm": "@post_layernorm",
    },
    prefix="@encoder.layers.",
    layer=_SIGLIP_LAYER,
)
_SIGLIP_VALUES = {
    **{"layers": 12, "width": 768, "mlp_width": 3072, "heads": 12, "norm_eps": 1e-6},
    **{"image_size": 224, "patch": 16, "activation": "gelu_pytorch_tanh"},
}
_CLIP_VALUES = {**_SIGLIP_VALUES, "norm_eps": 1e-5, "patch": 32, "activation": "quick_gelu"}
_BARE_TOWERS = ("vision_tower.", "model.vision_tower.")
_TOWERS = (
    "vision_tower.vision_model.",
    "model.vision_tower.vision_model.",
    *_BARE_TOWERS,
)
_PROJECTIONS = ("multi_modal_projector.", "model.multi_modal_projector.")
_TWO_LINEAR = {"projection.up": "%linear_1", "projection.down": "%linear_2"}


def _with(names: Names, **parts: str) -> Names:
    """The names with further parts outside of layers; `__` in a keyword stands for a dot."""
    more = {part.replace("__", "."): stored for part, stored in parts.items()}
    return replace(names, outside={**names.outside, **more})


_IDEFICS3 = FolderEyes(
    kind="idefics3",
    names=_with(_SIGLIP, projection__matrix="%modality_projection.proj"),
    encoders=("model.vision_model.",),
    projections=("model.connector.",),
    values={**_SIGLIP_VALUES, "width": 1152, "heads": 16, "patch": 32},
    read=lambda whole, vision: {"merge": whole.get("scale_factor", 2)},
)


def _pooled(whole: Config, vision: Config) -> dict[str, object]:
    """The square of patches whose mean becomes one row, from the number of rows."""
    sizes = [vision.get(key, _SIGLIP_VALUES[name]) for name, key in
             (("image_size", "image_size"), ("patch", "patch_size"))]  # fmt: skip
    rows = whole.get("mm_tokens_per_image", 256)
    image, patch = sizes
    if not isinstance(image, int) or not isinstance(patch, int) or patch < 1:
        return {"rows": rows}
    found = _side_of_positions({"mm_tokens_per_image": rows}, "mm_tokens_per_image")
    side = found["positions_side"]
    assert isinstance(side, int)
    return {"rows": rows, "merge": image // patch // side}


_GEMMA3 = FolderEyes(
    kind="gemma3",
    names=replace(
        _with(_SIGLIP, projection__norm="%mm_soft_emb_norm"),
        exact={"projection.matrix.weight": "%mm_input_projection_weight"},
        transposed=("projection.matrix.weight",),
        without_one=("projection.norm.weight",),
    ),
    encoders=_TOWERS,
    projections=_PROJECTIONS,
    values=_SIGLIP_VALUES,
    read=_pooled,
)


def _gemma4(whole: Config, vision: Config) -> dict[str, object]:
    """Heads of one size, and whether the text model sees pictures whole."""
    width, heads = vision.get("hidden_size", 768), vision.get("num_attention_heads", 12)
    head, kv_heads = vision.get("head_dim", 64), vision.get("num_key_value_heads", heads)
    sizes = isinstance(heads, int) and isinstance(head, int) and heads * head
    if kv_heads != heads or sizes != width:
        raise UnsupportedModelError(
            f"vision_config: {heads} heads of {head} elements over {kv_heads} heads of keys and a"
            f" width of {width} are not supported; supported: as many heads of keys, and a width"
            " of all heads together",
            param="num_key_value_heads",
        )
    text = whole.get("text_config")
    seen = text.get("use_bidirectional_attention") if isinstance(text, dict) else None
    rope = vision.get("rope_parameters")
    base = rope.get("rope_theta") if isinstance(rope, dict) else None
    return {"whole": seen == "vision", "rope.base": 100.0 if base is None else base}


_GEMMA4_MATRICES = {
    **{f"attention.{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v")},
    "attention.output": "self_attn.o_proj",
    **{f"mlp.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
_GEMMA4 = FolderEyes(
    kind="gemma4",
    names=Names(
        outside={"patches": "@patch_embedder.input_proj", "projection.matrix": "%projection"},
        prefix="@encoder.layers.",
        layer={
            **{part: f"{stored}.linear" for part, stored in _GEMMA4_MATRICES.items()},
            **{f"attention.{part}": f"self_attn.{part}" for part in ("q_norm", "k_norm")},
            "attention_norm": "input_layernorm",
            "after_attention_norm": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "after_mlp_norm": "post_feedforward_layernorm",
        },
        exact={
            "positions.weight": "@patch_embedder.position_embedding_table",
            "projection.standard_bias.weight": "@std_bias",
            "projection.standard_factor.weight": "@std_scale",
        },
        exact_in_layer={
            f"{part}.{limit}.weight": f"{stored}.{limit}"
            for part, stored in _GEMMA4_MATRICES.items()
            for limit in LIMITS
        },
        channels_last=True,
        splits_heads=True,
    ),
    encoders=_BARE_TOWERS,
    projections=("embed_vision.embedding_", "model.embed_vision.embedding_"),
    keys={"merge": "pooling_kernel_size", "norm_eps": "rms_norm_eps"}
    | {"activation": "hidden_activation"},
    values={
        **{"layers": 16, "width": 768, "mlp_width": 3072, "heads": 12, "norm_eps": 1e-6},
        **{"patch": 16, "merge": 3, "activation": "gelu_pytorch_tanh"},
    },
    read=_gemma4,
)
_LFM2_VL = FolderEyes(
    kind="lfm2_vl",
    names=replace(
        _with(
            _SIGLIP,
            projection__norm="%layer_norm",
            projection__up="%linear_1",
            projection__down="%linear_2",
        ),
        channels_last=True,
    ),
    encoders=_TOWERS,
    projections=_PROJECTIONS,
    values={**_SIGLIP_VALUES, "image_size": None},
    read=lambda whole, vision: {
        "merge": whole.get("downsample_factor", 2),
        "projection_activation": whole.get("projector_hidden_act", "gelu"),
        **_side_of_positions({"num_patches": vision.get("num_patches", 256)}, "num_patches"),
    },
)


def _llava(whole: Config, vision: Config) -> dict[str, object]:
    is_clip = vision.get("model_type") == "clip_vision_model"
    layers = vision.get("num_hidden_layers", 12)
    selected = whole.get("vision_feature_select_strategy", "default")
    return {
        **_features(whole, layers, "vision_feature_layer", -2),
        "keeps_first": is_clip and selected == "full",
        "projection_activation": whole.get("projector_hidden_act", "gelu"),
    }


_LLAVA = FolderEyes(
    kind="llava",
    names=replace(
        _SIGLIP,
        # States are read before the last norm.
        outside={
            **{part: name for part, name in _SIGLIP.outside.items() if part != "output_norm"},
            **_TWO_LINEAR,
            "pre_norm": "@pre_layrnorm",  # as `transformers` spells it
        },
        exact={"first.weight": "@embeddings.class_embedding"},
    ),
    encoders=_TOWERS,
    projections=_PROJECTIONS,
    values=_CLIP_VALUES,
    read=_llava,
)
_LLAVA_SIGLIP = replace(_LLAVA, values=_SIGLIP_VALUES)
_NEXT_NAMES = replace(
    _LLAVA.names, exact={**_LLAVA.names.exact, "row_break.weight": "&image_newline"}
)
_LLAVA_NEXT = replace(_LLAVA, kind="llava_next", names=_NEXT_NAMES)
_LLAVA_NEXT_SIGLIP = replace(_LLAVA_NEXT, values=_SIGLIP_VALUES)

# --- Pixtral -------------------------------------------------------------------------------------

_PIXTRAL_NAMES = Names(
    outside={
        "patches": "@patch_conv",
        "pre_norm": "@ln_pre",
        "projection.norm": "%norm",
        "projection.merge": "%patch_merger.merging_layer",
        **_TWO_LINEAR,
    },
    prefix="@transformer.layers.",
    layer={
        "attention_norm": "attention_norm",
        **{f"attention.{part}": f"attention.{part}_proj" for part in ("q", "k", "v")},
        "attention.output": "attention.o_proj",
        "mlp_norm": "ffn_norm",
        **{f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
    },
)


def _pixtral(whole: Config, vision: Config) -> dict[str, object]:
    is_merged = whole.get("model_type") == "mistral3"
    text = whole.get("text_config")
    return {
        "projection_norm_eps": text.get("rms_norm_eps") if isinstance(text, dict) else None,
        **_features(whole, vision.get("num_hidden_layers", 24), "vision_feature_layer", -1),
        "norm_eps": 1e-5,
        "merge": whole.get("spatial_merge_size", 2) if is_merged else 1,
        "projection_activation": whole.get("projector_hidden_act", "gelu"),
        "rope.base": _rope_base(vision),
    }


_PIXTRAL = FolderEyes(
    kind="pixtral",
    names=_PIXTRAL_NAMES,
    encoders=_BARE_TOWERS,
    projections=_PROJECTIONS,
    values={
        **{"layers": 24, "width": 1024, "mlp_width": 4096, "heads": 16, "image_size": 1024},
        **{"patch": 16, "activation": "gelu"},
    },
    read=_pixtral,
)
_MISTRAL3 = replace(_PIXTRAL, kind="mistral3")

# --- Qwen ----------------------------------------------------------------------------------------

_QWEN_ENCODERS = ("visual.", "model.visual.")
_QWEN_KEYS = {
    **{"layers": "depth", "heads": "num_heads", "merge": "spatial_merge_size"},
    "projected_width": "out_hidden_size",
}
_QWEN_VALUES = {
    **{"layers": 32, "heads": 16, "patch": 14, "merge": 2, "norm_eps": 1e-6},
    "projection_activation": "gelu",
}
_BLOCK = {
    "attention_norm": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.output": "attn.proj",
    "mlp_norm": "norm2",
}
_GATED = {f"mlp.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
_QWEN2_NAMES = Names(
    outside={
        "patches": "@patch_embed.proj",
        "projection.norm": "@merger.ln_q",
        "projection.up": "@merger.mlp.0",
        "projection.down": "@merger.mlp.2",
    },
    prefix="@blocks.",
    layer={**_BLOCK, "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"},
)


def _qwen2(whole: Config, vision: Config) -> dict[str, object]:
    width, ratio = vision.get("embed_dim", 1280), vision.get("mlp_ratio", 4)
    found: dict[str, object] = {"rope.base": _rope_base(vision)}
    if isinstance(width, int) and isinstance(ratio, int | float) and 0 < ratio < 1 << 10:
        found["mlp_width"] = int(width * ratio)
    return found


_QWEN2_VL = FolderEyes(
    kind="qwen2_vl",
    names=_QWEN2_NAMES,
    encoders=_QWEN_ENCODERS,
    projections=(),
    keys={**_QWEN_KEYS, "width": "embed_dim", "projected_width": "hidden_size"},
    values={**_QWEN_VALUES, "width": 1280, "activation": "quick_gelu"},
    read=_qwen2,
)


def _qwen2_5(whole: Config, vision: Config) -> dict[str, object]:
    window, patch = vision.get("window_size", 112), vision.get("patch_size", 14)
    found: dict[str, object] = {"rope.base": _rope_base(vision)}
    if isinstance(window, int) and isinstance(patch, int) and patch > 0:
        found["window"] = window // patch
    return found


_QWEN2_5_VL = FolderEyes(
    kind="qwen2_5_vl",
    names=replace(_QWEN2_NAMES, layer={**_BLOCK, **_GATED}),
    encoders=_QWEN_ENCODERS,
    projections=(),
    keys={**_QWEN_KEYS, "full_layers": "fullatt_block_indexes"},
    values={
        **_QWEN_VALUES,
        **{"width": 3584, "mlp_width": 3420, "activation": "silu"},
        "full_layers": [7, 15, 23, 31],
    },
    read=_qwen2_5,
)


def _qwen3(whole: Config, vision: Config) -> dict[str, object]:
    count = {"num_position_embeddings": vision.get("num_position_embeddings", 2304)}
    return {
        "rope.base": _rope_base(vision),
        **_side_of_positions(count, "num_position_embeddings"),
    }


_QWEN3_VL = FolderEyes(
    kind="qwen3_vl",
    names=Names(
        outside={
            "patches": "@patch_embed.proj",
            "positions": "@pos_embed",
            "projection.norm": "@merger.norm",
            "projection.up": "@merger.linear_fc1",
            "projection.down": "@merger.linear_fc2",
        },
        prefix="@blocks.",
        layer={**_BLOCK, "mlp.up": "mlp.linear_fc1", "mlp.down": "mlp.linear_fc2"},
        deepstack="@deepstack_merger_list.",
        in_deepstack={"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"},
    ),
    encoders=_QWEN_ENCODERS,
    projections=(),
    keys={**_QWEN_KEYS, "deepstack_layers": "deepstack_visual_indexes"},
    values={
        **_QWEN_VALUES,
        **{"layers": 27, "width": 1152, "mlp_width": 4304, "patch": 16},
        **{"activation": "gelu_pytorch_tanh", "deepstack_layers": [8, 16, 24]},
    },
    read=_qwen3,
)
_QWEN3_5 = replace(_QWEN3_VL, values={**_QWEN3_VL.values, "deepstack_layers": []})

# --- GLM -----------------------------------------------------------------------------------------

_GLM4V = FolderEyes(
    kind="glm4v",
    names=Names(
        outside={
            "patches": "@patch_embed.proj",
            "positions": "@embeddings.position_embedding",
            "pre_norm": "@post_conv_layernorm",
            "output_norm": "@post_layernorm",
            "projection.merge": "@downsample",
            "projection.matrix": "@merger.proj",
            "projection.middle_norm": "@merger.post_projection_norm",
            **{f"projection.{part}": f"@merger.{part}_proj" for part in ("gate", "up", "down")},
        },
        prefix="@blocks.",
        layer={**_BLOCK, **_GATED},
    ),
    encoders=_QWEN_ENCODERS,
    projections=(),
    keys={**_QWEN_KEYS, "mlp_width": "out_hidden_size", "norm_eps": "rms_norm_eps"},
    values={
        **{"layers": 24, "width": 1536, "mlp_width": 4096, "heads": 12, "norm_eps": 1e-5},
        **{"patch": 14, "merge": 2, "image_size": 336, "activation": "silu"},
    },
    read=lambda whole, vision: {"rope.base": _rope_base(vision)},
)

# --- InternVL ------------------------------------------------------------------------------------


def _internvl(whole: Config, vision: Config) -> dict[str, object]:
    layers = vision.get("num_hidden_layers", 24)
    key = "select_layer" if "select_layer" in whole else "vision_feature_layer"
    if whole.get(key, -1) not in (-1, layers):
        raise UnsupportedModelError(
            f"config.json: {key} {whole[key]!r} is not supported; supported: -1", param=key
        )
    return {
        "merge": _inverse("downsample_ratio", whole.get("downsample_ratio", 0.5)),
        "projection_activation": whole.get("projector_hidden_act", "gelu"),
    }


_INTERNVL = FolderEyes(
    kind="internvl",
    names=Names(
        outside={
            "patches": "@embeddings.patch_embeddings.projection",
            "output_norm": "@layernorm",
            "projection.norm": "%layer_norm",
            **_TWO_LINEAR,
        },
        prefix="@encoder.layer.",
        layer={
            "attention_norm": "layernorm_before",
            **{f"attention.{part}": f"attention.{part}_proj" for part in ("q", "k", "v")},
            **{f"attention.{part}": f"attention.{part}" for part in ("q_norm", "k_norm")},
            "attention.output": "attention.projection_layer",
            "mlp_norm": "layernorm_after",
            "mlp.up": "mlp.fc1",
            "mlp.down": "mlp.fc2",
        },
        exact={
            "first.weight": "@embeddings.cls_token",
            "positions.weight": "@embeddings.position_embeddings",
        },
        exact_in_layer={"attention_scale.weight": "lambda_1", "mlp_scale.weight": "lambda_2"},
    ),
    encoders=_BARE_TOWERS,
    projections=_PROJECTIONS,
    values={
        **{"layers": 24, "width": 1024, "mlp_width": 4096, "heads": 16, "norm_eps": 1e-6},
        **{"image_size": 448, "patch": 14, "activation": "gelu"},
    },
    read=_internvl,
)
_INTERNVL_CHAT = replace(
    _INTERNVL,
    names=Names(
        outside={
            "patches": "@embeddings.patch_embedding",
            "projection.norm": "%0",
            "projection.up": "%1",
            "projection.down": "%3",
        },
        prefix="@encoder.layers.",
        layer={
            **_BLOCK,
            **{f"attention.{part}": f"attn.{part}" for part in ("q_norm", "k_norm")},
            "mlp.up": "mlp.fc1",
            "mlp.down": "mlp.fc2",
        },
        exact={
            "first.weight": "@embeddings.class_embedding",
            "positions.weight": "@embeddings.position_embedding",
        },
        exact_in_layer={"attention_scale.weight": "ls1", "mlp_scale.weight": "ls2"},
    ),
    encoders=("vision_model.",),
    projections=("mlp1.",),
)

# --- Llama 4 -------------------------------------------------------------------------------------


def _llama4(whole: Config, vision: Config) -> dict[str, object]:
    return {
        "merge": _inverse("pixel_shuffle_ratio", vision.get("pixel_shuffle_ratio", 0.5)),
        "norm_eps": 1e-5,
        "rope.base": _rope_base(vision),
    }


_LLAMA4 = FolderEyes(
    kind="llama4",
    names=Names(
        outside={
            "patches": "@patch_embedding.linear",
            "pre_norm": "@layernorm_pre",
            "output_norm": "@layernorm_post",
            "adapter.up": "@vision_adapter.mlp.fc1",
            "adapter.down": "@vision_adapter.mlp.fc2",
            "projection.matrix": "%linear_1",
        },
        prefix="@model.layers.",
        layer={
            "attention_norm": "input_layernorm",
            **{f"attention.{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v")},
            "attention.output": "self_attn.o_proj",
            "mlp_norm": "post_attention_layernorm",
            "mlp.up": "mlp.fc1",
            "mlp.down": "mlp.fc2",
        },
        exact={
            "first.weight": "@class_embedding",
            "positions.weight": "@positional_embedding_vlm",
        },
    ),
    encoders=("vision_model.", "model.vision_model."),
    projections=_PROJECTIONS,
    values={
        **{"layers": 34, "width": 768, "mlp_width": 5632, "heads": 16},
        **{"image_size": 448, "patch": 14, "activation": "gelu"},
    },
    read=_llama4,
)

KINDS: Mapping[tuple[str, str], FolderEyes] = {
    ("idefics3", ""): _IDEFICS3,
    ("smolvlm", ""): _IDEFICS3,
    ("gemma3", ""): _GEMMA3,
    ("gemma4", ""): _GEMMA4,
    ("lfm2_vl", ""): _LFM2_VL,
    ("llava", "clip_vision_model"): _LLAVA,
    ("llava", "siglip_vision_model"): _LLAVA_SIGLIP,
    ("llava", "pixtral"): _PIXTRAL,
    ("mistral3", "pixtral"): _MISTRAL3,
    ("llava_next", "clip_vision_model"): _LLAVA_NEXT,
    ("llava_next", "siglip_vision_model"): _LLAVA_NEXT_SIGLIP,
    ("qwen2_vl", ""): _QWEN2_VL,
    ("qwen2_5_vl", ""): _QWEN2_5_VL,
    **{(name, ""): _QWEN3_VL for name in ("qwen3_vl", "qwen3_vl_moe")},
    **{(name, ""): _QWEN3_5 for name in ("qwen3_5", "qwen3_5_moe")},
    **{(name, ""): _GLM4V for name in ("glm4v", "glm4v_moe", "glm46v")},
    ("internvl", ""): _INTERNVL,
    ("internvl_chat", ""): _INTERNVL_CHAT,
    ("llama4", ""): _LLAMA4,
}
"""Kinds of eyes by two values of `model_type`: that at the top of config.json, and that in
`vision_config`, which is empty here where the first one says enough."""
