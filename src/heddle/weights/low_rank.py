"""Low-rank changes of matrices: what an adapter's files hold (LoRA, Hu et al. 2021,
arXiv:2106.09685)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.weights.tensor_types import TensorType


def product_name(tensor: str) -> str:
    """The name of the product with a matrix: an adapter changes products, and no look-ups.

    The matrix of the embedding may be the output matrix, too.
    """
    return "output" if tensor == "embedding" else tensor


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """A change of one matrix (n, k): its product with x gains `scale` * `b` @ (`a` @ x).

    Attributes:
        a: (rank, k) float32.
        b: (n, rank) float32.
        scale: the factor that the files give, such as alpha / rank.
        type: F32, F16 or BF16: the smallest type that holds all values of `a` and `b` exactly. Or
            I8: an executor may round them to integers, with a scale for each row of `a` and each
            column of `b`.
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]
    scale: float
    type: TensorType

    @property
    def rank(self) -> int:
        """Rows of `a`."""
        return len(self.a)
