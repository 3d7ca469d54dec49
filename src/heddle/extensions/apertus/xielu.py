"""Feed-forward layers with xIELU, an activation with learnt numbers (arXiv:2411.13010).

Above zero, it is p x**2 + b x; below, n (exp(min(x, eps)) - 1 - x) + b x. Files have b, eps, and
numbers whose softplus is p, and n less b. `transformers`, `XIELUActivation`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.ops import Loader, Ops

A = TypeVar("A")
W = TypeVar("W")

NUMBERS = ("alpha_p", "alpha_n", "beta", "eps")
"""The numbers of a layer, by their names in files."""
_EPS = -1e-6
"""The only `eps` that the operation has. Files round it to 8 bits."""
_LARGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Xielu:
    """The activation of one layer.

    Attributes:
        positive: factor on squares above zero.
        negative: factor on what exp(x) adds below zero.
        slope: factor on x.
    """

    positive: float
    negative: float
    slope: float

    @classmethod
    def of(cls, stored: Mapping[str, float], name: str) -> Xielu:
        """The activation with the numbers of a file, those of the layer `name`.

        Raises:
            ModelFileError: a number is too large, or none.
            UnsupportedModelError: `eps` is another than that of published models.
        """
        for label, value in stored.items():
            if not abs(value) <= _LARGEST:
                raise ModelFileError(
                    f"{name}.{label} is {value:g}; numbers of xIELU lie between -65536 and 65536",
                    field=label,
                )
        eps, beta = stored["eps"], stored["beta"]
        if not math.isclose(eps, _EPS, rel_tol=2.0**-8):
            raise UnsupportedModelError(
                f"{name}.eps {eps:g} is not supported; supported: {_EPS:g}", param="eps"
            )
        return cls(_softplus(stored["alpha_p"]), beta + _softplus(stored["alpha_n"]), beta)

    def forward(self, ops: Ops[A, W], x: A, width: int) -> A:
        """The activation of x (T, width), elementwise."""
        squares = ops.scale(ops.gated(x, x, "relu"), self.positive)
        tail = ops.activate(ops.take_columns(x, 0, width), "xielu_tail")
        curved = ops.add(squares, ops.scale(tail, self.negative))
        return ops.add(curved, ops.scale(x, self.slope))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@dataclass(frozen=True, slots=True)
class XieluMLPWeights(Generic[W]):
    up: W
    down: W
    activation: Xielu


@dataclass(frozen=True, slots=True)
class XieluMLP:
    """Feed-forward layer: down(xielu(up(x))).

    `activation` is None if the checkpoint has its numbers as tensors.
    """

    width: int
    hidden: int
    activation: Xielu | None

    def load(self, loader: Loader[W], name: str) -> XieluMLPWeights[W]:
        """Claim the tensors under `name`."""
        activation = self.activation
        if activation is None:
            stored = {label: loader.constants(f"{name}.{label}", 1)[0] for label in NUMBERS}
            activation = Xielu.of(stored, name)
        return XieluMLPWeights(
            up=loader.linear(f"{name}.up", self.hidden, self.width),
            down=loader.linear(f"{name}.down", self.width, self.hidden),
            activation=activation,
        )

    def forward(self, ops: Ops[A, W], weights: XieluMLPWeights[W], x: A) -> A:
        """Map normed x (T, width) to (T, width)."""
        up = ops.linear(x, weights.up)
        return ops.linear(weights.activation.forward(ops, up, self.hidden), weights.down)
