"""What a caller says of an embedding, and gets back. Plain data, open to every room."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from heddle.checks import check, check_salt

if TYPE_CHECKING:
    from array import array

    from heddle.types import Usage


class Pooling(Enum):
    """Which of a text's last hidden states its embedding is made of."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class EmbeddingParams:
    """What a request for an embedding asks for.

    Attributes:
        pooling: the mean of the last hidden states of all tokens, or that of the last token, which
            in a causal model is the only one that has seen them all; "mean" and "last" are taken
            too. None is what the engine's setting says.
        cache_salt: as in :class:`SamplingParams`. Only the last token's state can be had beside a
            cached prefix.

    Raises:
        InvalidRequestError: naming the field and its value.
    """

    pooling: Pooling | None = None
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pooling", _pooling(self.pooling))  # the class is frozen
        check_salt(self.cache_salt)


def _pooling(given: object) -> Pooling | None:
    known: dict[object, Pooling] = {pooling.value: pooling for pooling in Pooling}
    pooling = given if isinstance(given, Pooling) else known.get(given)
    words = " or ".join(map(str, known))
    check(given is None or pooling is not None, "pooling", given, words)
    return pooling


@dataclass(frozen=True, slots=True)
class Embedding:
    """A finished request for an embedding.

    Attributes:
        vector: float32 of the model's width and of length 1.
        usage: tokens and times.
    """

    vector: array[float]
    usage: Usage
