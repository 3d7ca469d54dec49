"""Parameters and result of a request for an embedding. Plain data, for all rooms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from heddle.checks import check, check_salt, integer
from heddle.errors import InvalidRequestError
from heddle.extended import Extended, canonical
from heddle.parameters import ExtensionParams

if TYPE_CHECKING:
    from array import array

    from heddle.outputs import Usage


class Pooling(Enum):
    """The last hidden states of a text from which its embedding is computed."""

    MEAN = "mean"
    CLS = "cls"  # the state of the first token, which in an encoder sees all others
    LAST = "last"
    NONE = "none"  # no pooling: a vector for each token


EVERY_STATE = (Pooling.MEAN, Pooling.CLS, Pooling.NONE)
"""The poolings that read the state of the first token, so that a prefix hit does not help."""

MAX_TOKEN_NUMBERS = 2**22
"""Most numbers of the vectors of one text's tokens: 16 MiB, and some 90 MB of JSON."""


@dataclass(frozen=True, slots=True)
class EmbeddingParams(Extended):
    """Parameters of a request for an embedding.

    Attributes:
        pooling: MEAN, the mean of the last hidden states of all tokens, or CLS, the state of the
            first token, or LAST, the state of the last token, which in a causal model is the only
            token that sees all others, or NONE, the states of all tokens. The strings "mean",
            "cls", "last" and "none" are accepted too. None: the engine's setting.
        cache_salt: as in :class:`SamplingParams`. Only LAST can use a cached prefix, because the
            cache keeps no hidden states.
        prompt_name: name of a text that the model's files give for inputs, such as "query"; the
            engine puts it before an input text. None: the default of the files, mostly no text.
        unit_length: whether to divide the vector by its length. NONE divides no vector.
        priority: as in :class:`SamplingParams`.
        extensions: parameters of extensions. Those that change the sampling have no effect.

    Raises:
        InvalidRequestError: names the field and its value.
    """

    pooling: Pooling | None = None
    cache_salt: str | None = None
    prompt_name: str | None = None
    unit_length: bool = True
    priority: int = 0
    extensions: tuple[ExtensionParams, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "pooling", _pooling(self.pooling))  # the class is frozen
        check_salt(self.cache_salt)
        object.__setattr__(self, "priority", integer(self.priority, "priority"))
        if self.extensions:
            found = canonical(self.extensions, ExtensionParams, InvalidRequestError)
            object.__setattr__(self, "extensions", found)


def _pooling(given: object) -> Pooling | None:
    known: dict[object, Pooling] = {pooling.value: pooling for pooling in Pooling}
    pooling = given if isinstance(given, Pooling) else known.get(given)
    check(given is None or pooling is not None, "pooling", given, "mean, cls, last or none")
    return pooling


@dataclass(frozen=True, slots=True)
class Embedding:
    """A finished request for an embedding.

    Attributes:
        vector: float32, with the model's width, of length 1 unless the request says otherwise. With
            pooling NONE, the vectors of all tokens, one after another, of any length.
        usage: tokens and times.
    """

    vector: array[float]
    usage: Usage
