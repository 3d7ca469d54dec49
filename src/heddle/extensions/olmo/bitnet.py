"""BitNet: as Llama, with a norm before the last matrix of each part, and squared ReLU.

Ma et al. 2025 (arXiv:2504.12285); `transformers`, `models/bitnet`; llama.cpp, `models/bitnet.cpp`
(architecture `bitnet`), and microsoft/BitNet's fork of it (`bitnet-b1.58`). The matrices are
ternary; extension `packed` reads those of folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.blocks import AttentionWeights
    from heddle.models.feed_forward import GatedMLPWeights
    from heddle.models.ops import Loader, Ops
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class _SubNormed(Generic[W]):
    """Weights of a part, and of the norm before its last matrix."""

    part: Any
    norm: W


@dataclass(frozen=True, slots=True)
class SubNormedAttention(Attention):
    """Attention that norms what the output matrix reads."""

    def load(self, loader: Loader[W], name: str) -> Any:
        """Claim the tensors of the layer `name`."""
        _refuse_scale(loader, f"{name}.attention.q")
        norm = loader.vector(f"{name}.attention.sub_norm", self.spec.heads * self.spec.head_dim)
        return _SubNormed(Attention.load(self, loader, name), norm)

    def forward(self, ops: Ops[A, W], weights: Any, x: A, positions: A, layer: int) -> A:
        """Map normed x (T, width) to (T, width). Stores its keys and values in layer `layer`."""
        spec = self.spec
        own: AttentionWeights[Any] = weights.part
        assert own.k is not None, "each layer has keys of its own"
        assert own.v is not None, "and values"
        q = self._placed(ops, ops.linear(x, own.q), None, own.q_rope, positions, spec.heads)
        k = self._placed(ops, ops.linear(x, own.k), None, own.rope, positions, spec.kv_heads)
        y = ops.attend(q, k, ops.linear(x, own.v), layer, spec)
        return ops.linear(ops.norm(y, weights.norm, self.norm_eps), own.output)


@dataclass(frozen=True, slots=True)
class SubNormedMLP:
    """down(norm(activation(gate(x)) * up(x)))."""

    plain: GatedMLP
    norm_eps: float

    @property
    def width(self) -> int:
        """Width of the hidden state."""
        return self.plain.width

    def load(self, loader: Loader[W], name: str) -> _SubNormed[W]:
        """Claim the tensors under `name`."""
        norm = loader.vector(f"{name}.sub_norm", self.plain.hidden)
        return _SubNormed(self.plain.load(loader, name), norm)

    def forward(self, ops: Ops[A, W], weights: _SubNormed[W], x: A) -> A:
        """Map normed x (T, width) to (T, width)."""
        own: GatedMLPWeights[W] = weights.part
        gate = ops.activate(ops.linear(x, own.gate), self.plain.activation)
        y = ops.gated(gate, ops.linear(x, own.up), "identity")
        return ops.linear(ops.norm(y, weights.norm, self.norm_eps), own.down)


def _refuse_scale(loader: Loader[W], matrix: str) -> None:
    """Refuse files whose matrices have their scale beside them."""
    if loader.has(f"{matrix}.scale"):
        raise UnsupportedModelError(
            f"tensor {matrix}.scale is not supported: the scale of a matrix in a tensor of its own;"
            " use a file of type TQ1_0 or TQ2_0, or a folder",
            param=f"{matrix}.scale",
        )


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    activation = read.choice("activation", ("squared_relu", "silu"), "squared_relu")
    positions = rope(read, shape.head_dim, context)
    attention = SubNormedAttention(shape.width, sizes.attention(read), positions, norm_eps=eps)
    mlp = SubNormedMLP(GatedMLP(shape.width, sizes.mlp_width, activation), eps)
    return Decoder(shape, (Layer(attention, mlp, eps),) * shape.layers, eps)


def _read(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """Files of `bitnet` that name no activation have SiLU, as llama.cpp reads them."""
    named = metadata.get("hidden_activation", "silu")
    values["activation"] = "squared_relu" if named == "relu2" else named


_GGUF = {"attention.sub_norm": "attn_sub_norm", "mlp.sub_norm": "ffn_sub_norm"}
_SCALE = {"attention.q.scale.weight": "attn_q.scale"}
FAMILY = Family(
    build=build,
    gguf={
        "bitnet": GGUFNames(layer=_GGUF, tensors=_SCALE, read=_read),
        "bitnet-25": GGUFNames(layer=_GGUF, tensors=_SCALE),
        "bitnet-b1.58": GGUFNames(layer=_GGUF, tensors=_SCALE),
    },
    hf={
        "bitnet": FolderNames(
            layer={
                "attention.sub_norm": "self_attn.attn_sub_norm",
                "mlp.sub_norm": "mlp.ffn_sub_norm",
            }
        )
    },
)
