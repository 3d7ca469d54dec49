"""Cross-encoders: a classifier with one class reads the query and the document as a pair.

Nogueira & Cho 2019 (arXiv:1901.04085). The class's logit is the score, as sentence-transformers'
`CrossEncoder` and Text Embeddings Inference have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.embedding import EmbeddingParams
from heddle.errors import InvalidRequestError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sized

    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """See :class:`heddle.loading.judge.Judge`."""

    tokenizer: Tokenizer

    @property
    def params(self) -> EmbeddingParams:
        """Parameters of a classifier's logits."""
        return EmbeddingParams(unit_length=False)

    def prompt(self, query: str, document: str, instruction: str | None = None) -> list[int]:
        """Token ids of the pair.

        Raises:
            InvalidRequestError: there is an instruction, which a cross-encoder has no place for.
        """
        if instruction is not None:
            raise InvalidRequestError(
                f"instruction {instruction[:40]!r} cannot be followed: this model reads a query and"
                " a document, nothing else. Leave instruction out",
                param="instruction",
            )
        return self.tokenizer.encode_pair(query, document)

    def shorten(self, prompt: list[int], limit: int) -> list[int]:
        """The prompt without the end of its document."""
        return self.tokenizer.shorten(prompt, limit)

    def logit(self, vector: array[float]) -> float:
        """The one logit."""
        return vector[0]


def judge_of(checkpoint: Checkpoint, tokenizer: Tokenizer) -> CrossEncoder | None:
    """The judge of a classifier with one class."""
    labels: Sized = checkpoint.hyperparameters.get("labels", ())  # type: ignore[assignment]
    return CrossEncoder(tokenizer) if len(labels) == 1 else None
