"""The type of each matrix when a model is quantised: at load, or to a new file.

Only matrices stored as floats are quantised. A matrix that is already quantised stays as it is:
quantising twice loses more than the second type alone. As in llama.cpp's mixes, the embeddings and
the output matrix keep more bits, and the routers of experts stay as they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.weights.checkpoint import TensorInfo

TARGETS = {
    "q8_0": TensorType.Q8_0,
    "q6_k": TensorType.Q6_K,
    "q5_k": TensorType.Q5_K,
    "q4_k": TensorType.Q4_K,
    "q4_0": TensorType.Q4_0,
    "mxfp4": TensorType.MXFP4,
}
"""Types that a user may ask for, by name."""

AS_STORED = "none"
"""The setting that quantises nothing."""

_AT_THE_ENDS = {TensorType.Q8_0: TensorType.Q8_0, TensorType.MXFP4: TensorType.Q8_0}
"""Types of the embedding and the output matrix; Q6_K where the table has no row."""

_NARROW = {
    TensorType.Q6_K: TensorType.Q8_0,
    TensorType.Q5_K: TensorType.Q5_1,
    TensorType.Q4_K: TensorType.Q5_0,
}
"""Types for rows that are not whole super-blocks of 256, as in llama.cpp."""

_ENDS = ("embedding.weight", "layer_inputs.embedding.weight", "output.weight")
_ROUTERS = (".router.weight", ".shared_gate.weight")


@dataclass(frozen=True, slots=True)
class Mix:
    """The types of a model's matrices.

    Attributes:
        target: the type that was asked for; None: every matrix stays as it is stored.
    """

    target: TensorType | None = None

    @classmethod
    def named(cls, name: str) -> Mix:
        """The mix of a key of :data:`TARGETS`, or of :data:`AS_STORED`."""
        return cls(TARGETS.get(name))

    def type_of(self, tensor: TensorInfo) -> TensorType:
        """The type that the tensor gets; its own if it stays as it is."""
        if self.target is None or not _is_float_matrix(tensor):
            return tensor.type
        wanted = self.target
        if tensor.name in _ENDS:
            wanted = _AT_THE_ENDS.get(wanted, TensorType.Q6_K)
        columns = tensor.shape[-1]
        if columns % wanted.block_elements:
            wanted = _NARROW.get(wanted, wanted)
        return tensor.type if columns % wanted.block_elements else wanted

    def kept(self, tensors: Iterable[TensorInfo]) -> str:
        """The matrices that stay although a type was asked for, as text; empty if there is none."""
        quantised = (t for t in tensors if len(t.shape) > 1 and not t.type.is_float)
        counts = Counter(tensor.type.name for tensor in quantised if self.target is not None)
        return ", ".join(f"{count} of type {name}" for name, count in counts.most_common())


def _is_float_matrix(tensor: TensorInfo) -> bool:
    is_matrix = len(tensor.shape) > 1 and tensor.name.endswith(".weight")
    return is_matrix and tensor.type.is_float and not tensor.name.endswith(_ROUTERS)
