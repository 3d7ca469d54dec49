"""Eyes: the encoder of pictures that stands before a decoder.

Eyes read patches of pictures. One forward pass computes several pictures, of T patches in all. The
patches lie in an order in which those that become one row of the decoder are consecutive. So eyes
need no operation that knows pictures: a patch is a row, its place on both axes turns rotations, and
attention sees runs of patches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from heddle.models.ops import Batch, Loader, Ops
    from heddle.state import KvShape

A = TypeVar("A")


class Eyes(Protocol):
    """Describes the eyes of one checkpoint. Holds no tensors.

    Attributes:
        input_width: columns of what is known of a patch: its pixels, then for some eyes a vector
            for its position, which the host computes.
        row_width: columns of a row of the decoder.
        fold: consecutive patches that become one row.
        kept: shape of the keys and values of a patch. All layers have the same.
    """

    @property
    def input_width(self) -> int: ...
    @property
    def row_width(self) -> int: ...
    @property
    def fold(self) -> int: ...
    @property
    def kept(self) -> KvShape: ...

    def load(self, loader: Loader[Any]) -> Any:
        """Claim all tensors."""
        ...

    def forward(self, ops: Ops[A, Any], weights: Any, batch: Batch[A]) -> A:
        """The rows (R, row_width) that begin at the batch's `rows`.

        Its `states` are (T, input_width); its `tokens` mean nothing. All layers keep keys and
        values as layer 0, because a layer is done before the next one begins.
        """
        ...
