"""GGUF's metadata of recurrent layers and latent attention, for folders that become GGUF files.

The keys are those that llama.cpp's converter writes (`convert_hf_to_gguf.py`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import UnsupportedModelError
from heddle.weights.gguf import names
from heddle.weights.gguf.hyperparameters import SCORINGS

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters

    Metadata = dict[str, object]

LAYOUT_KEYS = frozenset(
    {"recurrent_layers", "attention_period", "expert_layers", "layer_parts"}
    | {"state.heads", "state.groups", "state.key_dim", "state.inner", "state.taps"}
    | {"state.step_rank"}
)
"""Hyperparameters whose keys :func:`layout_metadata` writes."""

SHORT_CONVOLUTIONS = frozenset({"lfm2", "lfm2moe"})
_ONE_PART = frozenset({"nemotron_h", "nemotron_h_moe"})
MAMBA = _ONE_PART | {"mamba2", "falcon-h1", "granitehybrid"}
"""Architectures with Mamba-2. Its vectors are stored as matrices."""
SCANS = frozenset({"mamba", "jamba"})
"""Architectures with Mamba, whose rates of decay are stored as a matrix."""
_LATENT_ATTENTION = frozenset({"deepseek2", "kimi-linear"})
_RECURRENT_IF_NO_HEADS = SHORT_CONVOLUTIONS | {"granitehybrid", "jamba", "kimi-linear"}
_DELTA_NETS = frozenset({"qwen3next", "qwen35", "qwen35moe"})
_SCORING = {"lfm2moe": "sigmoid", "kimi-linear": "sigmoid"}
"""How experts are scored, where the architecture implies it and llama.cpp wants a key."""


def refuse(read: Hyperparameters, name: str, reason: str) -> UnsupportedModelError:
    """The error for a hyperparameter that GGUF cannot express."""
    return UnsupportedModelError(
        f"{read.label(name)} {read.get(name)!r} cannot be written as GGUF; {reason}", param=name
    )


def layout_metadata(read: Hyperparameters, architecture: str) -> Metadata:
    """GGUF's metadata of kinds of layers, by the key after the architecture's name.

    Raises:
        UnsupportedModelError: GGUF cannot express the layers.
    """
    found: Metadata = {}
    if architecture in _DELTA_NETS:
        found |= _delta_net(read, architecture)
    if architecture in SHORT_CONVOLUTIONS:
        found["shortconv.l_cache"] = read.integer("state.taps")
    if architecture == "granitehybrid":
        found |= _mamba(read)
    if architecture in SCANS:
        found |= _scans(read)
    if architecture in _ONE_PART:
        found |= _one_part(read) | _states(read)
    if architecture in _LATENT_ATTENTION:
        found |= _latent(read, architecture)
    if architecture == "kimi-linear":
        found |= _kimi_delta(read)
    if architecture in _RECURRENT_IF_NO_HEADS:
        found["attention.head_count_kv"] = _heads_of_layers(read, architecture)
    if read.get("experts") and (architecture in _SCORING or architecture == "deepseek2"):
        found |= _experts(read, architecture)
    return found


def _delta_net(read: Hyperparameters, architecture: str) -> Metadata:
    heads = read.integer("state.heads")
    found = {
        "full_attention_interval": _attention_period(read),
        "ssm.conv_kernel": read.integer("state.taps"),
        "ssm.state_size": read.integer("state.key_dim"),
        "ssm.inner_size": heads * read.integer("state.value_dim", read.integer("state.key_dim")),
        "ssm.time_step_rank": heads,
        "ssm.group_count": read.integer("state.groups"),
    }
    if architecture == "qwen3next":
        return dict(found)
    # Pairs of elements that turn by time, height and width; all are equal in text.
    pairs = read.integer("rope.dim", read.integer("key_dim")) // 2
    sections = [-(-(pairs - i) // 3) for i in range(3)]
    return found | {"rope.dimension_sections": np.array([*sections, 0], np.int32)}


def _attention_period(read: Hyperparameters) -> int:
    """The number of layers after which one has attention."""
    listed = read.get("recurrent_layers")
    if not isinstance(listed, list):
        return read.integer("attention_period", 4)
    period = listed.index(False) + 1 if False in listed else len(listed) + 1
    if listed != [(layer + 1) % period > 0 for layer in range(len(listed))]:
        raise refuse(read, "recurrent_layers", "there, every so many layers one has attention")
    return period


def _mamba(read: Hyperparameters) -> Metadata:
    found: Metadata = {"rope.scaling.finetuned": read.get("rope.layer_period") != 1}
    if read.get("experts"):  # the width of the shared expert has a key of its own
        found["feed_forward_length"] = read.integer("expert_width")
    listed = read.get("recurrent_layers")
    return found | _states(read) if isinstance(listed, list) and any(listed) else found


def _states(read: Hyperparameters) -> Metadata:
    """The sizes of Mamba-2."""
    return {
        "ssm.conv_kernel": read.integer("state.taps", 4),
        "ssm.state_size": read.integer("state.key_dim"),
        "ssm.inner_size": read.integer("state.inner"),
        "ssm.time_step_rank": read.integer("state.heads"),
        "ssm.group_count": read.integer("state.groups", 1),
    }


def _scans(read: Hyperparameters) -> Metadata:
    """The sizes of Mamba."""
    return {
        "ssm.conv_kernel": read.integer("state.taps", 4),
        "ssm.state_size": read.integer("state.key_dim", 16),
        "ssm.inner_size": read.integer("state.inner"),
        "ssm.time_step_rank": read.integer("state.step_rank"),
    }


def _one_part(read: Hyperparameters) -> Metadata:
    """Key/value heads and width of each layer; the other of both is 0, or both are."""
    parts, has_experts = read.get("layer_parts"), bool(read.get("experts"))
    width = read.integer("expert_width" if has_experts else "mlp_width")
    listed = parts if isinstance(parts, list) else []
    sizes = {"attention": (read.integer("kv_heads"), 0), "mlp": (0, width)}
    heads, widths = zip(*(sizes.get(part, (0, 0)) for part in listed), strict=True)
    return {
        "attention.head_count_kv": np.array(heads, np.int32),
        "attention.layer_norm_epsilon": read.number("norm_eps"),  # llama.cpp requires it
        "feed_forward_length": np.array(widths, np.int32),
    }


def _heads_of_layers(read: Hyperparameters, architecture: str) -> object:
    """Key/value heads of each layer, 0 for those with a recurrence."""
    # Latents are one head for all queries.
    heads = 1 if architecture in _LATENT_ATTENTION else read.integer("kv_heads")
    layers, listed = read.integer("layers"), read.get("recurrent_layers")
    recurrent = listed if isinstance(listed, list) else [False] * layers
    return np.array([0 if one else heads for one in recurrent], np.int32)


def _latent(read: Hyperparameters, architecture: str) -> Metadata:
    rank, turned = read.integer("latent_rank"), read.integer("rope.dim")
    found: Metadata = {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": read.integer("key_dim"),
        "attention.value_length_mla": read.integer("value_dim"),
        "rope.dimension_count": turned,
    }
    if architecture != "deepseek2":
        return found
    if not read.flag("rope.interleaved", True):
        raise refuse(read, "rope.interleaved", "latent attention rotates neighbours there")
    return found | _yarn(read)


def _yarn(read: Hyperparameters) -> Metadata:
    """The growth of scores with the stretch. llama.cpp derives the factor on rotated elements."""
    if read.get("rope.scaling", "none") != "yarn":
        return {}
    growth = 0.1 * math.log(read.number("rope.factor"))
    multiplier = (math.sqrt(read.number("rope.score_factor", 1.0)) - 1.0) / growth
    scale = read.number("rope.attention_factor", 1.0) * (1.0 + growth)
    if not multiplier or not math.isclose(scale, 1.0, rel_tol=1e-6):
        reason = "GGUF's architecture deepseek2 has mscale and mscale_all_dim, and both are equal"
        raise refuse(read, "rope.scaling", reason)
    return {names.YARN_LOG_MULTIPLIER: 0.1 * multiplier, "rope.scaling.attn_factor": 1.0}


def _kimi_delta(read: Hyperparameters) -> Metadata:
    heads = read.integer("heads")
    if read.integer("state.heads", heads) != heads:
        raise refuse(read, "state.heads", f"there, both kinds of attention have {heads} heads")
    return {
        "kda.head_dim": read.integer("state.key_dim"),
        "ssm.conv_kernel": read.integer("state.taps", 4),
    }


def _experts(read: Hyperparameters, architecture: str) -> Metadata:
    """The scoring as a number, and which layers have experts."""
    numbers = {name: number for number, name in SCORINGS.items()}
    scoring = read.get("expert_scoring", _SCORING.get(architecture))
    found: Metadata = {"expert_gating_func": numbers[str(scoring)]}
    listed = read.get("expert_layers")
    if not isinstance(listed, list):
        return found
    dense = listed.index(True) if True in listed else len(listed)
    if not all(listed[dense:]):
        raise refuse(read, "expert_layers", "there, all layers after the first ones have experts")
    return found | {"leading_dense_block_count": dense}
