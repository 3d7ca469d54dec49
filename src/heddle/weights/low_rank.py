"""Low-rank changes of matrices: what an adapter's files hold (LoRA, Hu et al. 2021,
arXiv:2106.09685; DoRA, Liu et al. 2024, arXiv:2402.09353)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.weights.tensor_types import TensorType


def product_name(tensor: str) -> str:
    """The name of the product with a matrix: an adapter changes products, and no look-ups.

    The matrix of the embedding may be the output matrix, too.
    """
    return "output" if tensor == "embedding" else tensor


def expert_name(stack: str, expert: int) -> str:
    """The name of the product with the matrix of one expert."""
    return f"{stack}.{expert}"


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """A change of one matrix W (n, k): W @ x gains `scale` * `b` @ (`a` @ x) + `gains` * (W @ x).

    Attributes:
        a: (rank, k) float32.
        b: (n, rank) float32.
        scale: the factor that the files give, such as alpha / rank.
        type: F32, F16 or BF16: the smallest type that holds all values of `a` and `b` exactly. Or
            I8: an executor may round them to integers, with a scale for each row of `a` and each
            column of `b`.
        gains: (n,) float32; None: without these.
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]
    scale: float
    type: TensorType
    gains: NDArray[np.float32] | None = None

    @property
    def rank(self) -> int:
        """Rows of `a`."""
        return len(self.a)


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """Another matrix (n, k) float32, of the smallest type that holds it, in the place of one."""

    values: NDArray[np.float32]
    type: TensorType


Change: TypeAlias = LowRank | Whole
"""A change of the product with a matrix, by the name of the product.

Changes of `embedding` are those of the rows that tokens are looked up in, also where this is the
output matrix, too, whose changes are those of `output`.
"""
