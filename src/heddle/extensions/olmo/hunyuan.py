"""Hunyuan, dense or with experts: as Llama, with norms of heads after their rotation.

Tencent 2024 (arXiv:2411.02265); `transformers`, `hunyuan_v1_dense` and `hunyuan_v1_moe`; llama.cpp,
`conversion/hunyuan.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.models.blocks import Attention, Layer, QueryKeyNorm
from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.models.decoder import Decoder
    from heddle.models.ops import Ops, RopeSpec
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class NormedAfterRotation(Attention):
    """Attention that rotates queries and keys, then norms them."""

    def _placed(
        self,
        ops: Ops[A, W],
        x: A,
        norm: W | None,
        rope: RopeSpec | None,
        positions: A,
        heads: int,
    ) -> A:
        rotated = x if rope is None else ops.rope(x, positions, rope, heads)
        return rotated if norm is None else self._normed(ops, rotated, norm, heads)


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    plain = llama.build(hyperparameters, context, norm=QueryKeyNorm.HEADS)
    return replace(plain, layers=tuple(map(_normed_after, plain.layers)))


def _normed_after(layer: Layer) -> Layer:
    own = layer.mixer
    assert isinstance(own, Attention), "a layer of Llama has attention"
    mixer = NormedAfterRotation(
        own.width, own.spec, own.rope, own.norm, own.norm_eps, own.temperature
    )
    return replace(layer, mixer=mixer)


def _read(config: Config) -> Config:
    """`dynamic` with `alpha` is a larger base, whatever the length of a sequence."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict) or not rope.get("alpha"):
        return {}
    size, alpha = config.get("head_dim"), rope["alpha"]
    base = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    if not isinstance(size, int):
        width, heads = config.get("hidden_size"), config.get("num_attention_heads")
        size = width // heads if isinstance(width, int) and isinstance(heads, int) and heads else 0
    if not isinstance(alpha, float | int) or not isinstance(base, float | int) or size <= 2:
        return {}
    return {"rope.base": base * alpha ** (size / (size - 2)), "rope.scaling": "none"}


def _one(config: Config, key: str, default: object = None) -> object:
    """A number that config.json may have for each layer.

    Raises:
        UnsupportedModelError: layers differ.
    """
    value = config.get(key, default)
    if not isinstance(value, list):
        return value
    if any(one != value[0] for one in value):
        raise UnsupportedModelError(
            f"config.json: {key} {value!r} is not supported: layers must not differ", param=key
        )
    return value[0] if value else default


def _read_mixture(config: Config) -> Config:
    width, shared = config.get("intermediate_size"), _one(config, "num_shared_expert", 1)
    return _read(config) | {
        "experts_used": _one(config, "moe_topk", 1),
        "expert_width": _one(config, "moe_intermediate_size", width),
        "shared_expert_width": (
            width * shared if isinstance(width, int) and isinstance(shared, int) else width
        ),
    }


_NORMS = {
    "attention.q_norm": "self_attn.query_layernorm",
    "attention.k_norm": "self_attn.key_layernorm",
}
_SHARED = {f"mlp.shared.{one}": f"mlp.shared_mlp.{one}_proj" for one in ("gate", "up", "down")}
FAMILY = Family(
    build=build,
    gguf={"hunyuan-dense": GGUFNames(), "hunyuan-moe": GGUFNames()},
    hf={
        "hunyuan_v1_dense": FolderNames(layer=_NORMS, read=_read),
        "hunyuan_v1_moe": FolderNames(
            layer=_NORMS | _SHARED | {"mlp.router": "mlp.gate.wg"},
            read=_read_mixture,
        ),
    },
)
