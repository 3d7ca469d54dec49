"""The tiny models with eyes, one or more for each kind; see `tiny_eyes_base.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from tiny_eyes_base import IMAGE, TinyEyes, convolution, layer_norm, linear, rms_norm, siglip

from models.tiny.gemma3 import TinyGemma3
from models.tiny.gemma4 import MODELS as GEMMA4_TEXTS
from models.tiny.gemma4 import TinyGemma4
from models.tiny.glm4v import MODELS as GLM4V_TEXTS
from models.tiny.granite import MODELS as GRANITE
from models.tiny.lfm2 import MODELS as LFM2
from models.tiny.llama import PLAIN as LLAMA
from models.tiny.llama4 import MODELS as LLAMA4_TEXTS
from models.tiny.qwen2 import MODELS as QWEN2
from models.tiny.qwen2_vl import MODELS as QWEN2_VL_TEXTS
from models.tiny.qwen3_vl import MODELS as QWEN3_VL_TEXTS

if TYPE_CHECKING:
    from tiny_eyes_base import State

    from models.tiny.base import Random

WIDTH, INNER, PATCH = 24, 36, 4
_SIZES: dict[str, object] = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": PATCH,
}


def _in_text_model(name: str) -> str:
    return name.replace("model.", "model.text_model.", 1)


def _first_in_text_model(name: str) -> str:
    """As older folders name the tensors of the text model, with its output matrix."""
    return f"language_model.{name}"


def _in_language_model(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1)


def _two_linear(random: Random, begin: str, inner: int, width: int, *, bias: bool = True) -> State:
    return {
        **linear(random, f"{begin}linear_1", width, inner, bias=bias),
        **linear(random, f"{begin}linear_2", width, width, bias=bias),
    }


# --- SigLIP and CLIP -----------------------------------------------------------------------------


def _siglip(random: Random, begin: str, layers: int = 2) -> State:
    embeddings = f"{begin}embeddings."
    return {
        **convolution(random, f"{embeddings}patch_embedding", (WIDTH, 3, PATCH, PATCH)),
        f"{embeddings}position_embedding.weight": random.normal(16, WIDTH),
        **siglip(random, begin, layers, WIDTH, INNER),
        **layer_norm(random, f"{begin}post_layernorm", WIDTH),
    }


def _idefics3(random: Random) -> State:
    return {
        **_siglip(random, "model.vision_model."),
        **linear(random, "model.connector.modality_projection.proj", 32, 4 * WIDTH, bias=False),
    }


IDEFICS3 = TinyEyes(
    name="idefics3",
    text=LLAMA,
    text_name=_in_text_model,
    whole={
        "model_type": "idefics3",
        "image_token_id": IMAGE,
        "scale_factor": 2,
        "tie_word_embeddings": True,
    },
    vision={"model_type": "idefics3_vision", **_SIZES},
    eyes=_idefics3,
    size=(16, 16),
    rows=4,
)


def _gemma3(random: Random) -> State:
    return {
        **_siglip(random, "vision_tower.vision_model."),
        "multi_modal_projector.mm_input_projection_weight": random.matrix(32, WIDTH).T,
        "multi_modal_projector.mm_soft_emb_norm.weight": random.near(0, WIDTH),
    }


GEMMA3 = TinyEyes(
    name="gemma3",
    text=TinyGemma3("windows", heads=4, kv_heads=2, head_dim=16, layers=4, window=8, period=2),
    text_name=_first_in_text_model,
    whole={
        "model_type": "gemma3",
        "image_token_index": IMAGE,
        "boi_token_index": 10,
        "eoi_token_index": 11,
        "mm_tokens_per_image": 4,
        "tie_word_embeddings": True,
    },
    vision={"model_type": "siglip_vision_model", "vision_use_head": False, **_SIZES},
    eyes=_gemma3,
    size=(16, 16),
    rows=4,
)


def _gemma4(random: Random, *, standard: bool) -> State:
    begin = "model.vision_tower."
    state = {
        **linear(random, f"{begin}patch_embedder.input_proj", WIDTH, 3 * PATCH**2, bias=False),
        f"{begin}patch_embedder.position_embedding_table": random.normal(2, 16, WIDTH),
        **linear(random, "model.embed_vision.embedding_projection", 32, WIDTH, bias=False),
    }
    if standard:
        state[f"{begin}std_bias"] = random.near(0, WIDTH)
        state[f"{begin}std_scale"] = random.near(1, WIDTH)
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    sizes = {f"self_attn.{part}_proj": (WIDTH, WIDTH) for part in ("q", "k", "v", "o")}
    sizes |= {"mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH)}
    sizes |= {"mlp.down_proj": (WIDTH, INNER)}
    for i in range(2):
        name = f"{begin}encoder.layers.{i}"
        for norm in norms:
            state |= rms_norm(random, f"{name}.{norm}_layernorm", WIDTH)
        for part in ("q", "k"):
            state |= rms_norm(random, f"{name}.self_attn.{part}_norm", WIDTH // 2)
        for part, (rows, columns) in sizes.items():
            state |= linear(random, f"{name}.{part}.linear", rows, columns, bias=False)
            if standard:
                continue
            for side, reach in (("input", 1.3), ("output", 0.9)):
                for end, most in (("min", -reach), ("max", reach + 0.2)):
                    state[f"{name}.{part}.{side}_{end}"] = np.array(most, np.float32)
    return state


_GEMMA4_VISION: dict[str, object] = {
    **{key: value for key, value in _SIZES.items() if key != "image_size"},
    "model_type": "gemma4_vision",
    "num_key_value_heads": 2,
    "head_dim": WIDTH // 2,
    "pooling_kernel_size": 2,
    "position_embedding_size": 16,
}
GEMMA4 = TinyEyes(
    name="gemma4",
    text=TinyGemma4("dense", heads=6, kv_heads=3, head_dim=16, layers=6, window=8),
    text_name=_in_language_model,
    text_more={"use_bidirectional_attention": "vision", "pad_token_id": 0},
    whole={
        "model_type": "gemma4",
        "image_token_id": IMAGE,
        "tie_word_embeddings": True,
        "audio_config": None,
    },
    vision=_GEMMA4_VISION | {"standardize": True},
    eyes=lambda random: _gemma4(random, standard=True),
    size=(16, 24),
    rows=6,
)
"""As the larger models: rows are standardised, and tokens of a picture see one another."""
GEMMA4_SMALL = replace(
    GEMMA4,
    file="gemma4_small",
    text=GEMMA4_TEXTS[0],
    text_more={"pad_token_id": 0},
    vision=_GEMMA4_VISION | {"use_clipped_linears": True},
    eyes=lambda random: _gemma4(random, standard=False),
)
"""As the smaller models: matrices have limits, and layers inputs of their own."""


def _lfm2_vl(random: Random) -> State:
    begin = "model.vision_tower.vision_model."
    state = _siglip(random, begin)
    patches = f"{begin}embeddings.patch_embedding.weight"
    state[patches] = state[patches].reshape(WIDTH, -1)
    projector = "model.multi_modal_projector."
    return {
        **state,
        **layer_norm(random, f"{projector}layer_norm", 4 * WIDTH),
        **linear(random, f"{projector}linear_1", 40, 4 * WIDTH),
        **linear(random, f"{projector}linear_2", 32, 40),
    }


LFM2_VL = TinyEyes(
    name="lfm2_vl",
    text=LFM2[0],
    text_name=_in_language_model,
    whole={
        "model_type": "lfm2_vl",
        "image_token_id": IMAGE,
        "projector_hidden_size": 40,
        "downsample_factor": 2,
        "tie_word_embeddings": True,
    },
    vision={
        **{key: value for key, value in _SIZES.items() if key != "image_size"},
        "model_type": "siglip2_vision_model",
        "vision_use_head": False,
        "num_patches": 16,
    },
    eyes=_lfm2_vl,
    size=(16, 24),
    rows=6,
)


def _clip(random: Random) -> State:
    begin = "vision_tower.vision_model."
    state = _siglip(random, begin)
    embeddings = f"{begin}embeddings."
    del state[f"{embeddings}patch_embedding.bias"]
    return {
        **state,
        f"{embeddings}class_embedding": random.normal(WIDTH),
        f"{embeddings}position_embedding.weight": random.normal(17, WIDTH),
        **layer_norm(random, f"{begin}pre_layrnorm", WIDTH),
        **_two_linear(random, "multi_modal_projector.", WIDTH, 32),
    }


LLAVA = TinyEyes(
    name="llava",
    text=LLAMA,
    text_name=_first_in_text_model,
    whole={"model_type": "llava", "image_token_index": IMAGE, "tie_word_embeddings": True},
    vision={"model_type": "clip_vision_model", **_SIZES},
    eyes=_clip,
    size=(16, 16),
    rows=16,
    unused=("encoder.layers.1.", "post_layernorm."),
)


def _llava_next(random: Random) -> State:
    return {
        **_siglip(random, "vision_tower.vision_model.", 3),
        "image_newline": random.normal(32),
        **_two_linear(random, "multi_modal_projector.", 2 * WIDTH, 32),
    }


LLAVA_NEXT = TinyEyes(
    name="llava_next",
    text=GRANITE[0],
    text_name=_first_in_text_model,
    whole={
        "model_type": "llava_next",
        "image_token_index": IMAGE,
        "image_grid_pinpoints": [[16, 16], [16, 32], [32, 16]],
        "vision_feature_layer": [-3, -2],
        "vision_feature_select_strategy": "full",
        "use_image_newline_parameter": True,
        "tie_word_embeddings": True,
    },
    vision={
        **_SIZES,
        "model_type": "siglip_vision_model",
        "vision_use_head": False,
        "num_hidden_layers": 3,
    },
    eyes=_llava_next,
    size=(16, 16),
    tiles=3,
    rows=16 + 4 * 9,
    unused=("encoder.layers.2.", "post_layernorm."),
)

# --- Pixtral -------------------------------------------------------------------------------------


def _pixtral(random: Random) -> State:
    begin = "vision_tower."
    state = {
        **convolution(random, f"{begin}patch_conv", (WIDTH, 3, PATCH, PATCH), bias=False),
        **rms_norm(random, f"{begin}ln_pre", WIDTH),
    }
    for i in range(2):
        name = f"{begin}transformer.layers.{i}"
        state |= rms_norm(random, f"{name}.attention_norm", WIDTH)
        for part in ("q", "k", "v", "o"):
            state |= linear(random, f"{name}.attention.{part}_proj", WIDTH, WIDTH, bias=False)
        state |= rms_norm(random, f"{name}.ffn_norm", WIDTH)
        for part in ("gate", "up"):
            state |= linear(random, f"{name}.feed_forward.{part}_proj", INNER, WIDTH, bias=False)
        state |= linear(random, f"{name}.feed_forward.down_proj", WIDTH, INNER, bias=False)
    return state


_PIXTRAL_VISION = {**_SIZES, "model_type": "pixtral", "head_dim": WIDTH // 2, "image_size": 32}
PIXTRAL = TinyEyes(
    name="pixtral",
    text=LLAMA,
    text_name=_first_in_text_model,
    text_more={"model_type": "mistral"},
    whole={
        "model_type": "llava",
        "image_token_index": IMAGE,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "tie_word_embeddings": True,
    },
    vision=_PIXTRAL_VISION,
    eyes=lambda random: {
        **_pixtral(random),
        **_two_linear(random, "multi_modal_projector.", WIDTH, 32),
    },
    size=(16, 24),
    rows=24,
)
MISTRAL3 = TinyEyes(
    name="mistral3",
    text=LLAMA,
    text_name=_first_in_text_model,
    text_more={"model_type": "mistral"},
    whole={
        "model_type": "mistral3",
        "image_token_index": IMAGE,
        "vision_feature_layer": -1,
        "spatial_merge_size": 2,
        "tie_word_embeddings": True,
    },
    vision=_PIXTRAL_VISION,
    eyes=lambda random: {
        **_pixtral(random),
        **rms_norm(random, "multi_modal_projector.norm", WIDTH),
        **linear(
            random,
            "multi_modal_projector.patch_merger.merging_layer",
            WIDTH,
            4 * WIDTH,
            bias=False,
        ),
        **_two_linear(random, "multi_modal_projector.", WIDTH, 32, bias=False),
    },
    size=(16, 24),
    rows=6,
)

# --- Qwen and GLM --------------------------------------------------------------------------------

_QWEN_IDS: dict[str, object] = {
    "image_token_id": IMAGE,
    "video_token_id": 9,
    "vision_start_token_id": 10,
    "vision_end_token_id": 11,
}
_HEAD: dict[str, object] = {
    **{"depth": 2, "num_heads": 2, "patch_size": PATCH, "spatial_merge_size": 2},
    "temporal_patch_size": 2,
}


def _block(random: Random, name: str, width: int, *, bias: bool = True) -> State:
    """The attention of a block. Queries and keys are enlarged."""
    state = linear(random, f"{name}.attn.qkv", 3 * width, width, bias=bias)
    state[f"{name}.attn.qkv.weight"][: 2 * width] *= 3
    return state | linear(random, f"{name}.attn.proj", width, width, bias=bias)


def _gated(random: Random, name: str, width: int, inner: int, *, bias: bool) -> State:
    return {
        **linear(random, f"{name}.gate_proj", inner, width, bias=bias),
        **linear(random, f"{name}.up_proj", inner, width, bias=bias),
        **linear(random, f"{name}.down_proj", width, inner, bias=bias),
    }


def _merger(random: Random, up: str, down: str, width: int, text: int) -> State:
    return {
        **linear(random, up, 4 * width, 4 * width),
        **linear(random, down, text, 4 * width),
    }


def _qwen2_vl(random: Random) -> State:
    state = convolution(random, "visual.patch_embed.proj", (32, 3, 2, PATCH, PATCH), bias=False)
    for i in range(2):
        name = f"visual.blocks.{i}"
        state |= layer_norm(random, f"{name}.norm1", 32) | layer_norm(random, f"{name}.norm2", 32)
        state |= _block(random, name, 32)
        state |= linear(random, f"{name}.mlp.fc1", 64, 32)
        state |= linear(random, f"{name}.mlp.fc2", 32, 64)
    return {
        **state,
        **layer_norm(random, "visual.merger.ln_q", 32),
        **_merger(random, "visual.merger.mlp.0", "visual.merger.mlp.2", 32, 64),
    }


QWEN2_VL = TinyEyes(
    name="qwen2_vl",
    text=QWEN2_VL_TEXTS[0],
    text_name=lambda name: name,
    whole={"model_type": "qwen2_vl", "tie_word_embeddings": True, **_QWEN_IDS},
    vision={**_HEAD, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
    eyes=_qwen2_vl,
    size=(16, 24),
    rows=6,
)


def _qwen2_5_vl(random: Random) -> State:
    state = convolution(random, "visual.patch_embed.proj", (32, 3, 2, PATCH, PATCH), bias=False)
    for i in range(2):
        name = f"visual.blocks.{i}"
        state |= rms_norm(random, f"{name}.norm1", 32) | rms_norm(random, f"{name}.norm2", 32)
        state |= _block(random, name, 32)
        state |= _gated(random, f"{name}.mlp", 32, 48, bias=True)
    return {
        **state,
        **rms_norm(random, "visual.merger.ln_q", 32),
        **_merger(random, "visual.merger.mlp.0", "visual.merger.mlp.2", 32, 64),
    }


QWEN2_5_VL = TinyEyes(
    name="qwen2_5_vl",
    text=QWEN2_VL_TEXTS[1],
    text_name=_in_language_model,
    whole={"model_type": "qwen2_5_vl", "tie_word_embeddings": False, **_QWEN_IDS},
    vision={
        **_HEAD,
        "hidden_size": 32,
        "intermediate_size": 48,
        "out_hidden_size": 64,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    },
    eyes=lambda random: {f"model.{name}": one for name, one in _qwen2_5_vl(random).items()},
    size=(16, 24),
    rows=6,
)


def _qwen3_vl(random: Random) -> State:
    begin = "model.visual."
    state = convolution(random, f"{begin}patch_embed.proj", (32, 3, 2, PATCH, PATCH))
    state[f"{begin}pos_embed.weight"] = random.normal(16, 32)
    for i in range(2):
        name = f"{begin}blocks.{i}"
        state |= layer_norm(random, f"{name}.norm1", 32) | layer_norm(random, f"{name}.norm2", 32)
        state |= _block(random, name, 32)
        state |= linear(random, f"{name}.mlp.linear_fc1", 48, 32)
        state |= linear(random, f"{name}.mlp.linear_fc2", 32, 48)
    for name, width in ((f"{begin}merger", 32), (f"{begin}deepstack_merger_list.0", 128)):
        state |= layer_norm(random, f"{name}.norm", width)
        state |= _merger(random, f"{name}.linear_fc1", f"{name}.linear_fc2", 32, 32)
    return state


QWEN3_VL = TinyEyes(
    name="qwen3_vl",
    text=QWEN3_VL_TEXTS[0],
    text_name=_in_language_model,
    whole={"model_type": "qwen3_vl", "tie_word_embeddings": True, **_QWEN_IDS},
    vision={
        **_HEAD,
        "hidden_size": 32,
        "intermediate_size": 48,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    },
    eyes=_qwen3_vl,
    size=(16, 24),
    rows=6,
)


def _glm4v(random: Random) -> State:
    begin = "model.visual."
    state = convolution(random, f"{begin}patch_embed.proj", (32, 3, 2, PATCH, PATCH))
    state[f"{begin}embeddings.position_embedding.weight"] = random.normal(16, 32)
    for name in ("post_conv_layernorm", "post_layernorm"):
        state |= rms_norm(random, f"{begin}{name}", 32)
    for i in range(2):
        name = f"{begin}blocks.{i}"
        state |= rms_norm(random, f"{name}.norm1", 32) | rms_norm(random, f"{name}.norm2", 32)
        state |= _block(random, name, 32, bias=False)
        state |= _gated(random, f"{name}.mlp", 32, 64, bias=False)
    return {
        **state,
        **convolution(random, f"{begin}downsample", (64, 32, 2, 2)),
        **linear(random, f"{begin}merger.proj", 64, 64, bias=False),
        **layer_norm(random, f"{begin}merger.post_projection_norm", 64),
        **_gated(random, f"{begin}merger", 64, 80, bias=False),
    }


GLM4V = TinyEyes(
    name="glm4v",
    text=GLM4V_TEXTS[0],
    text_name=_in_language_model,
    whole={
        "model_type": "glm4v",
        "tie_word_embeddings": False,
        **{"image_token_id": IMAGE, "image_start_token_id": 10, "image_end_token_id": 11},
        **{"video_token_id": 9, "video_start_token_id": 13, "video_end_token_id": 14},
    },
    vision={
        **_HEAD,
        "hidden_size": 32,
        "intermediate_size": 80,
        "out_hidden_size": 64,
        "image_size": 16,
    },
    eyes=_glm4v,
    size=(16, 24),
    rows=6,
)

# --- InternVL and Llama 4 ------------------------------------------------------------------------


def _internvl(random: Random) -> State:
    begin = "vision_tower."
    state = {
        **convolution(
            random, f"{begin}embeddings.patch_embeddings.projection", (WIDTH, 3, PATCH, PATCH)
        ),
        f"{begin}embeddings.cls_token": random.normal(1, 1, WIDTH),
        f"{begin}embeddings.position_embeddings": random.normal(1, 17, WIDTH),
    }
    for i in range(2):
        name = f"{begin}encoder.layer.{i}"
        state |= layer_norm(random, f"{name}.layernorm_before", WIDTH)
        state |= layer_norm(random, f"{name}.layernorm_after", WIDTH)
        for part in ("q", "k", "v"):
            state |= linear(random, f"{name}.attention.{part}_proj", WIDTH, WIDTH)
        state |= linear(random, f"{name}.attention.projection_layer", WIDTH, WIDTH)
        state |= linear(random, f"{name}.mlp.fc1", INNER, WIDTH)
        state |= linear(random, f"{name}.mlp.fc2", WIDTH, INNER)
        for part in ("lambda_1", "lambda_2"):
            state[f"{name}.{part}"] = random.near(1, WIDTH)
    return {
        **state,
        **layer_norm(random, "multi_modal_projector.layer_norm", 4 * WIDTH),
        **_two_linear(random, "multi_modal_projector.", 4 * WIDTH, 32),
    }


INTERNVL = TinyEyes(
    name="internvl",
    text=QWEN2[0],
    text_name=_first_in_text_model,
    whole={
        "model_type": "internvl",
        "image_token_id": IMAGE,
        "image_seq_length": 4,
        "downsample_ratio": 0.5,
        "tie_word_embeddings": True,
    },
    vision={
        **_SIZES,
        **{"model_type": "internvl_vision", "attention_bias": True},
        **{"image_size": [16, 16], "patch_size": [PATCH, PATCH]},
    },
    eyes=_internvl,
    size=(16, 16),
    rows=4,
)


def _llama4(random: Random) -> State:
    begin, inner = "vision_model.", 4 * WIDTH
    state = {
        **linear(random, f"{begin}patch_embedding.linear", WIDTH, 3 * PATCH**2, bias=False),
        f"{begin}class_embedding": random.normal(WIDTH),
        f"{begin}positional_embedding_vlm": random.normal(17, WIDTH),
        **layer_norm(random, f"{begin}layernorm_pre", WIDTH),
        **layer_norm(random, f"{begin}layernorm_post", WIDTH),
        **linear(random, f"{begin}vision_adapter.mlp.fc1", 40, inner, bias=False),
        **linear(random, f"{begin}vision_adapter.mlp.fc2", 40, 40, bias=False),
        **linear(random, "multi_modal_projector.linear_1", 32, 40, bias=False),
    }
    for i in range(2):
        name = f"{begin}model.layers.{i}"
        state |= layer_norm(random, f"{name}.input_layernorm", WIDTH)
        state |= layer_norm(random, f"{name}.post_attention_layernorm", WIDTH)
        for part in ("q", "k", "v", "o"):
            state |= linear(random, f"{name}.self_attn.{part}_proj", WIDTH, WIDTH)
        state |= linear(random, f"{name}.mlp.fc1", inner, WIDTH)
        state |= linear(random, f"{name}.mlp.fc2", WIDTH, inner)
    return state


LLAMA4 = TinyEyes(
    name="llama4",
    text=LLAMA4_TEXTS[0],
    text_name=_first_in_text_model,
    whole={
        "model_type": "llama4",
        "image_token_index": IMAGE,
        "boi_token_index": 10,
        "eoi_token_index": 11,
        "tie_word_embeddings": False,
    },
    vision={
        **_SIZES,
        **{"model_type": "llama4_vision_model", "intermediate_size": 4 * WIDTH},
        **{"vision_output_dim": 40, "projector_input_dim": 40, "projector_output_dim": 40},
    },
    eyes=_llama4,
    size=(16, 16),
    rows=4,
)

MODELS = (
    *(IDEFICS3, QWEN2_VL, QWEN2_5_VL, QWEN3_VL, GEMMA3, PIXTRAL, MISTRAL3, INTERNVL, LFM2_VL),
    *(LLAVA, LLAVA_NEXT, LLAMA4, GLM4V, GEMMA4, GEMMA4_SMALL),
)
