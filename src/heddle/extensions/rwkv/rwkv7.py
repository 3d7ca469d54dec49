"""RWKV-7 ("Goose"): layers of time mixing and channel mixing, without attention.

Peng et al. 2025 (arXiv:2503.14456). Folders are those of flash-linear-attention
(`fla/models/rwkv7`, `fla/layers/rwkv7.py`); GGUF files are those of llama.cpp (`models/rwkv7.cpp`,
`conversion/rwkv.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.executor import ModelShape
from heddle.extensions.layer_norms.placed import PlacedDecoder
from heddle.extensions.rwkv.folder import make
from heddle.extensions.rwkv.mixes import ChannelMix, Ranks, TimeMix
from heddle.models.blocks import apply_norm, load_norm
from heddle.models.family import Family
from heddle.models.fixed_state import fixed_state
from heddle.state import NO_SHAPE
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.extensions.rwkv.mixes import ChannelMixWeights, TimeMixWeights
    from heddle.models.blocks import LayerNormWeights
    from heddle.models.decoder import DecoderWeights
    from heddle.models.ops import Batch, Loader, Ops, StatePlace
    from heddle.state import Fixed, StateKind
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class RwkvLayerWeights(Generic[W]):
    time_norm: W | LayerNormWeights[W]
    time_mix: TimeMixWeights[W]
    channel_norm: W | LayerNormWeights[W]
    channel_mix: ChannelMixWeights[W]


@dataclass(frozen=True, slots=True)
class RwkvLayer:
    """A layer. Its state: the last row that each part has read, and the matrices of the heads.

    Attributes:
        time_mix, channel_mix: its parts.
        size: elements of a head.
        norm_eps: epsilon of the norms.
        is_first: whether it is the first layer, whose values the others read.
        centred: the norms are layer norms.
    """

    time_mix: TimeMix
    channel_mix: ChannelMix
    size: int
    norm_eps: float
    is_first: bool
    centred: bool = True

    def places(self, layer: int) -> tuple[Fixed, list[StatePlace]]:
        """The state of layer `layer`: rows of time mixing and channel mixing, then matrices."""
        width = self.time_mix.width
        return fixed_state(layer, [width, width, width * self.size])

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See :meth:`heddle.models.blocks.Layer.state`."""
        assert causal, "a recurrence sees no later tokens"
        return (self.places(0)[0],)

    def load(self, loader: Loader[W], name: str) -> RwkvLayerWeights[W]:
        """Claim the tensors under `name`."""
        width = self.time_mix.width
        return RwkvLayerWeights(
            time_norm=load_norm(loader, f"{name}.attention_norm", width, centred=True),
            time_mix=self.time_mix.load(loader, f"{name}.time", first=self.is_first),
            channel_norm=load_norm(loader, f"{name}.mlp_norm", width, centred=True),
            channel_mix=self.channel_mix.load(loader, f"{name}.channel"),
        )

    def forward(
        self, ops: Ops[A, W], weights: RwkvLayerWeights[W], x: A, values: A | None, layer: int
    ) -> tuple[A, A]:
        """x (T, width) after both parts, and the values of the first layer."""
        _, (time, channel, matrices) = self.places(layer)
        y = apply_norm(ops, weights.time_norm, x, self.norm_eps)
        y, values = self.time_mix.forward(ops, weights.time_mix, y, values, (time, matrices))
        x = ops.add(x, y)
        y = apply_norm(ops, weights.channel_norm, x, self.norm_eps)
        return ops.add(x, self.channel_mix.forward(ops, weights.channel_mix, y, channel)), values


@dataclass(frozen=True, slots=True, kw_only=True)
class RwkvDecoder(PlacedDecoder):
    """A decoder whose layers pass on the values of the first."""

    layers: tuple[Any, ...]

    def hidden(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A], x: A) -> A:
        """See :meth:`heddle.models.decoder.Decoder.hidden`."""
        values = None
        for index, layer in enumerate(self.layers):
            x, values = layer.forward(ops, weights.layers[index], x, values, index)
        return x


def build(hyperparameters: Hyperparameters, _: int) -> RwkvDecoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    read = hyperparameters
    width, size, eps = read.integer("width"), read.integer("state.key_dim"), read.number("norm_eps")
    if width % size or size % 16:
        read.fail(
            "state.key_dim",
            f"is {size}; it must be a multiple of 16 that divides the width {width}",
        )
    shape = ModelShape(
        layers=read.integer("layers"),
        kv_heads=NO_SHAPE.heads,
        head_dim=NO_SHAPE.dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=width,
    )
    ranks = Ranks(*read.integers("state.ranks", 4))
    time_mix, channel_mix = (
        TimeMix(width, ranks, size * eps),
        ChannelMix(width, read.integer("mlp_width")),
    )
    layers = tuple(
        RwkvLayer(time_mix, channel_mix, size, eps, is_first=index == 0)
        for index in range(shape.layers)
    )
    return RwkvDecoder(shape=shape, layers=layers, norm_eps=eps, norms_embedding=True)


_GGUF_RANKS = tuple(
    f"attention.{one}_lora_rank" for one in ("decay", "iclr", "gate", "value_residual_mix")
)
_RANKS = tuple(f"{one}_low_rank_dim" for one in ("decay", "a", "gate", "v"))


def _read_gguf(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    _read_state(values)
    values["state.ranks"] = [metadata.get(key) for key in _GGUF_RANKS]


def _read_state(values: dict[str, Any]) -> None:
    """What tells the size of the state: each layer has a recurrence, and two rows beside it."""
    layers, width, size = (values.get(name) for name in ("layers", "width", "state.key_dim"))
    if isinstance(layers, int):
        values["recurrent_layers"] = [True] * layers
    if isinstance(width, int) and isinstance(size, int) and size > 0:
        values |= {"state.heads": width // size, "state.value_dim": size, "state.taps": 3}


_LONGEST = 1 << 20
"""Tokens of a sequence. A state has no positions, and max_position_embeddings of folders says how
long the first texts of training were. llama.cpp's converter writes the same number."""
_REQUIRED = {"attn": None, "norm_first": True, "norm_bias": True, "hidden_act": "sqrelu"}


def _read(config: Config) -> Config:
    for key, only in _REQUIRED.items():
        if config.get(key, only) != only:
            raise UnsupportedModelError(
                f"config.json: {key} {config[key]!r} is not supported; supported: {only}", param=key
            )
    width = config.get("hidden_size")
    sizes = config.get("value_dim")
    if sizes is not None and any(
        one != width for one in (sizes if isinstance(sizes, list) else [sizes])
    ):
        raise UnsupportedModelError(
            f"config.json: value_dim {sizes!r} is not supported; supported: hidden_size, {width}",
            param="value_dim",
        )
    ranks = [config.get(key) for key in _RANKS]
    found: Config = {"state.ranks": ranks, "context": _LONGEST}
    ratio = config.get("hidden_ratio", 4)
    if (
        config.get("intermediate_size") is None
        and isinstance(width, int)
        and isinstance(ratio, int | float)
    ):
        found["mlp_width"] = -(-int(width * ratio) // 32) * 32
    values = {
        "layers": config.get("num_hidden_layers"),
        "width": width,
        "state.key_dim": config.get("head_dim"),
    }
    _read_state(values)
    return found | {name: one for name, one in values.items() if one is not None}


_LOW_RANK = {"decay": "w", "rate": "a", "gate": "g", "values": "v"}
_GGUF_MATRICES = {
    **{f"time.{part}_in": f"time_mix_{one}1" for part, one in _LOW_RANK.items()},
    **{f"time.{part}_out": f"time_mix_{one}2" for part, one in _LOW_RANK.items()},
}
_GGUF_BIASES = {
    f"time.{part}_out.bias": f"time_mix_{one}0.weight"
    for part, one in _LOW_RANK.items()
    if part != "gate"
}
_FOLDER_MATRICES = {
    **{f"time.{part}_in": f"attn.{one}_lora.lora.0" for part, one in _LOW_RANK.items()},
    **{f"time.{part}_out": f"attn.{one}_lora.lora.2" for part, one in _LOW_RANK.items()},
}
FAMILY = Family(
    build=build,
    gguf={
        "rwkv7": GGUFNames(
            hyperparameters={
                "norm_eps": "attention.layer_norm_epsilon",
                "state.key_dim": "wkv.head_size",
                "state.ranks": "*_lora_rank",
            },
            outside={"embedding_norm": "token_embd_norm"},
            layer={
                "mlp_norm": "attn_norm_2",
                "time.shares": "time_mix_lerp_fused",
                "time.receptance": "time_mix_receptance",
                "time.key": "time_mix_key",
                "time.value": "time_mix_value",
                "time.output": "time_mix_output",
                "time.removal": "time_mix_k_k",
                "time.replacement": "time_mix_k_a",
                "time.bonus": "time_mix_r_k",
                "time.result_norm": "time_mix_ln",
                "channel.shares": "channel_mix_lerp_k",
                "channel.key": "channel_mix_key",
                "channel.value": "channel_mix_value",
            }
            | _GGUF_MATRICES,
            tensors=_GGUF_BIASES,
            read=_read_gguf,
        )
    },
    hf={
        "rwkv7": FolderNames(
            hyperparameters={
                "norm_eps": "norm_eps",
                "state.ranks": "*_low_rank_dim",
                "state.key_dim": "head_dim",
            },
            activations={"sqrelu": "squared_relu"},
            outside={
                "embedding": "model.embeddings",
                "embedding_norm": "model.layers.0.pre_norm",
            },
            layer={
                "attention_norm": "attn_norm",
                "mlp_norm": "ffn_norm",
                "time.receptance": "attn.r_proj",
                "time.key": "attn.k_proj",
                "time.value": "attn.v_proj",
                "time.output": "attn.o_proj",
                "time.result_norm": "attn.g_norm",
                "channel.key": "ffn.key",
                "channel.value": "ffn.value",
            }
            | _FOLDER_MATRICES,
            tensors={
                "time.removal.weight": "attn.k_k",
                "time.replacement.weight": "attn.k_a",
                "channel.shares.weight": "ffn.x_k",
            },
            read=_read,
            make=make,
        )
    },
)
