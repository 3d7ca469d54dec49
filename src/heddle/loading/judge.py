"""What scores how well documents answer a query. Extensions know the models that can."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from heddle.doors import extensions, refer
from heddle.errors import InvalidRequestError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable

    from heddle.embedding import EmbeddingParams
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.checkpoint import Checkpoint


class Judge(Protocol):
    """One model's way to score a document."""

    @property
    def params(self) -> EmbeddingParams:
        """Parameters of the vectors that `logit` reads."""
        ...

    def prompt(self, query: str, document: str, instruction: str | None = None) -> list[int]:
        """Token ids for a query and a document. Control tokens in texts are plain text.

        Raises:
            InvalidRequestError: the model takes no instruction.
        """
        ...

    def shorten(self, prompt: list[int], limit: int) -> list[int]:
        """At most `limit` ids of a prompt, without the end of its document."""
        ...

    def logit(self, vector: array[float]) -> float:
        """The score of a prompt's vector, before the logistic function."""
        ...


def judge_of(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Judge | None:
    """The judge of a model; None if no extension knows how it judges.

    Raises:
        ModelFileError, ModelSourceError: the files cannot be read.
    """
    references = (one for extension in extensions().values() for one in extension.judges)
    found = (refer(one)(checkpoint, tokenizer) for one in references)
    return next((judge for judge in found if judge is not None), None)


def probability(logit: float) -> float:
    """The logistic function."""
    if logit < 0:  # so that exp does not overflow
        return math.exp(logit) / (1 + math.exp(logit))
    return 1 / (1 + math.exp(-logit))


def paired(queries: str | Iterable[str], documents: str | Iterable[str]) -> list[tuple[str, str]]:
    """Each document with its query. One text on a side belongs to all on the other side.

    Raises:
        InvalidRequestError: the numbers of queries and documents differ.
    """
    firsts, seconds = ([one] if isinstance(one, str) else list(one) for one in (queries, documents))
    if len(firsts) == 1:
        firsts *= len(seconds)
    elif len(seconds) == 1:
        seconds *= len(firsts)
    if len(firsts) != len(seconds):
        raise InvalidRequestError(
            f"{len(firsts)} queries cannot be paired with {len(seconds)} documents; send one query,"
            " or as many queries as documents",
            param="queries",
        )
    return list(zip(firsts, seconds, strict=True))
