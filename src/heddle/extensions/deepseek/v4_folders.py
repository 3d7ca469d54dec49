"""Folders of DeepSeek-V4: names of tensors, tensors in another shape, keys of config.json.

Files have DeepSeek's own names, not those of `transformers`, whose `conversion_mapping` lists both.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.deepseek.config import check
from heddle.weights.huggingface.made import MadeTensor
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import Stored

    Raw = NDArray[np.uint8]

_OVERLAPPING = 4
"""The entry of `compress_ratios` that means runs which overlap, whatever their length."""
_INTEGERS = {"I64": np.int64, "I32": np.int32}
_RESHAPED = re.compile(
    r"layers\.(\d{1,9})\.(attn\.wo_a\.weight|attn\.compressor\.ape|ffn\.gate\.tid2eid)"
)


def hyperparameters(config: Config) -> dict[str, object]:
    """The hyperparameters that only this family has, under canonical names.

    Raises:
        UnsupportedModelError: a value that no canonical name can express.
    """
    check(config, "scoring_func", (None, "sqrtsoftplus"))
    check(config, "norm_topk_prob", (None, True))
    check(config, "attention_bias", (None, False))
    ratios, overlapping = _compression(config)
    found: dict[str, object] = {
        "compression": ratios,
        "compression.overlapping": overlapping,
        "expert_scoring": "sqrt_softplus",
        "window": config.get("sliding_window", 128),
        "window_layers": None,
        "streams": config.get("hc_mult", 4),
        "streams.turns": config.get("hc_sinkhorn_iters", 20),
        "streams.eps": config.get("hc_eps", 1e-6),
        "listed_layers": config.get("num_hash_layers", 3),
        "prediction_layers": 0,  # the head reads streams
    }
    top = config.get("index_topk", 512)
    if overlapping not in ratios:  # there is no indexer
        found["dense_context"] = config.get("max_position_embeddings")
    elif isinstance(top, int) and isinstance(overlapping, int) and top > 0:
        found["dense_context"] = (top + 1) * overlapping - 1
    return found | _positions(config)


def _compression(config: Config) -> tuple[list[object], object]:
    """The positions of a run in each layer, and the number of which runs overlap."""
    ratios: dict[object, object] = {0: 0}
    for ratio, key in ((_OVERLAPPING, "compress_rate_csa"), (128, "compress_rate_hca")):
        ratios[ratio] = config.get(key) or ratio
    layers, listed = config.get("num_hidden_layers"), config.get("compress_ratios")
    numbers = listed[:layers] if isinstance(listed, list) and isinstance(layers, int) else [None]
    if not all(isinstance(one, int) and one in ratios for one in numbers):
        raise UnsupportedModelError(
            f"config.json: compress_ratios {listed!r} is not supported; it must have"
            f" {', '.join(map(str, ratios))} for each layer",
            param="compress_ratios",
        )
    return [ratios[one] for one in numbers], ratios[_OVERLAPPING]


def _positions(config: Config) -> dict[str, object]:
    """Rotary positions: of layers with compressed positions, and of those without.

    Yarn has no factor on queries and keys here.
    """
    scaling, size = config.get("rope_scaling"), config.get("head_dim")
    rope = scaling if isinstance(scaling, dict) else {}
    kind = rope.get("rope_type", rope.get("type"))
    found: dict[str, object] = {
        "rope.interleaved": True,
        "rope.base": config.get("compress_rope_theta", 160_000.0),
        "rope.local_base": config.get("rope_theta", 10_000.0),
        "rope.dim": config.get("qk_rope_head_dim", size // 8 if isinstance(size, int) else None),
    }
    factor = rope.get("factor") if kind == "yarn" else None
    if isinstance(factor, float | int) and factor > 1:
        found["rope.attention_factor"] = 1 / (0.1 * math.log(factor) + 1)
    return found


def made_tensors(tensors: Mapping[str, Stored], config: Config) -> dict[str, MadeTensor]:
    """Tensors that have another shape or type than the canonical ones, by canonical name.

    Raises:
        ModelFileError: a tensor has not the shape or type that it needs.
    """
    found = {}
    for label, stored in tensors.items():
        match = _RESHAPED.fullmatch(label)
        if match is None:
            continue
        if len(stored.shape) != 2:
            raise ModelFileError(f"tensor {label} has shape {stored.shape}", field=label)
        layer, part = f"layers.{match[1]}", match[2]
        if part == "ffn.gate.tid2eid":
            found[f"{layer}.mlp.listed.weight"] = _numbers(label, stored)
        elif part == "attn.compressor.ape":
            flat = (stored.shape[0] * stored.shape[1],)
            name = f"{layer}.attention.compressed.bias_of_run.weight"
            found[name] = MadeTensor(stored.dtype, flat, (label,), _same)
        else:
            groups = config.get("o_groups", 8)
            if not isinstance(groups, int) or groups < 1 or stored.shape[0] % groups:
                raise ModelFileError(
                    f"o_groups {groups!r} does not divide the {stored.shape[0]} rows of {label}",
                    field="o_groups",
                )
            stack = (groups, stored.shape[0] // groups, stored.shape[1])
            name = f"{layer}.attention.groups.weight"
            found[name] = MadeTensor(stored.dtype, stack, (label,), _same)
    return found


def _same(raw: list[Raw]) -> Raw:
    return raw[0]


def _numbers(label: str, stored: Stored) -> MadeTensor:
    """Whole numbers as floats, which are exact: there are fewer than 2**24 experts."""
    kind = _INTEGERS.get(stored.dtype)
    if kind is None:
        raise ModelFileError(
            f"tensor {label} is {stored.dtype}; supported: {', '.join(_INTEGERS)}", field=label
        )

    def make(raw: list[Raw]) -> Raw:
        numbers: NDArray[np.integer] = raw[0].view(kind)
        return numbers.astype(np.float32).view(np.uint8)

    return MadeTensor("F32", (stored.shape[0] * stored.shape[1],), (label,), make)


_EXPERT = {"gate": "w1", "up": "w3", "down": "w2"}
_LAYER = {
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "attention.query": "attn.wq_a",
    "attention.query_norm": "attn.q_norm",
    "attention.query_heads": "attn.wq_b",
    "attention.key": "attn.wkv",
    "attention.key_norm": "attn.kv_norm",
    "attention.output": "attn.wo_b",
    "attention.compressed.x": "attn.compressor.wkv",
    "attention.compressed.gate": "attn.compressor.wgate",
    "attention.compressed.norm": "attn.compressor.norm",
    "mlp.router": "ffn.gate",
    **{f"mlp.experts.{part}": f"ffn.experts.*.{own}" for part, own in _EXPERT.items()},
    **{f"mlp.shared.{part}": f"ffn.shared_experts.{own}" for part, own in _EXPERT.items()},
}
_TENSORS = {
    "attention.sinks.weight": "attn.attn_sink",
    "mlp.selection_bias.weight": "ffn.gate.bias",
    **{
        f"{part}_streams.{own}": f"hc_{short}_{stored}"
        for part, short in (("attention", "attn"), ("mlp", "ffn"))
        for own, stored in (("weight", "fn"), ("base.weight", "base"), ("scales.weight", "scale"))
    },
}
FOLDER = FolderNames(
    hyperparameters={
        "compression": "compress_ratios",
        "dense_context": "index_topk",
        "listed_layers": "num_hash_layers",
        "output_groups": "o_groups",
        "output_rank": "o_lora_rank",
        "query_rank": "q_lora_rank",
        "streams": "hc_mult",
        "streams.eps": "hc_eps",
        "streams.turns": "hc_sinkhorn_iters",
    },
    outside={"embedding": "embed", "output_norm": "norm", "output": "head"},
    layer=_LAYER,
    tensors=_TENSORS,
    aliases={
        "hc_head_fn": "streams.weight",
        "hc_head_base": "streams.base.weight",
        "hc_head_scale": "streams.scales.weight",
    },
    read=hyperparameters,
    make=made_tensors,
)
