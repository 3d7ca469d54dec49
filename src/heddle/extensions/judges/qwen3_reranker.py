"""Scores how well documents answer a query, with the method of Qwen3-Reranker.

A prompt asks whether the document meets the query's requirements. The score is the probability of
"yes" against "no" as the next token: the logistic function of the difference of their logits (Zhang
et al. 2025, arXiv:2506.05176; the model card of Qwen3-Reranker has the prompt). The difference is
the last hidden state times the difference of two rows of the output matrix. So the engine computes
no logits for a document, and the document's prefix may come from the cache.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.embedding import EmbeddingParams, Pooling
from heddle.weights.tensor_types import dequantize

if TYPE_CHECKING:
    from array import array

    from numpy.typing import NDArray

    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.checkpoint import Checkpoint

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The default instruction of a request."""

_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
"""Architectures whose logits are the output matrix times the state, in both formats."""
_HEAD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and"
    ' the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_MARKS = ("<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class Reranker:
    """The prompts and scores of one model; see :class:`heddle.loading.judge.Judge`.

    Attributes:
        direction: (width,) float32, the row of "yes" in the output matrix less the row of "no".
        tokenizer: the model's.
    """

    direction: NDArray[np.float32]
    tokenizer: Tokenizer

    def prompt(self, query: str, document: str, instruction: str | None = None) -> list[int]:
        """Token ids of the question. Control tokens in the texts are encoded as plain text."""
        encode = self.tokenizer.encode
        body = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        inside = encode(body, add_special=False, parse_special=False)
        return [*self.tokenizer.encode_chat(_HEAD), *inside, *self._tail]

    def shorten(self, prompt: list[int], limit: int) -> list[int]:
        """The prompt without the end of its document."""
        tail = self._tail
        return prompt if len(prompt) <= limit else [*prompt[: limit - len(tail)], *tail]

    @property
    def _tail(self) -> list[int]:
        """Token ids that follow a document."""
        return self.tokenizer.encode(_TAIL, add_special=False)

    @property
    def params(self) -> EmbeddingParams:
        """Parameters of the last hidden state."""
        return EmbeddingParams(Pooling.LAST, unit_length=False)

    def logit(self, vector: array[float]) -> float:
        """The logit of "yes" less that of "no", from the last hidden state (width,)."""
        products = np.frombuffer(vector, np.float32).astype(np.float64) * self.direction
        return math.fsum(products.tolist())  # exact in any order


def judge_of(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Reranker | None:
    """The reranker of a model; None if it does not know the prompt's marks or is of another kind.

    Raises:
        ModelFileError, ModelSourceError: the files cannot be read.
    """
    known = all(tokenizer.control_id(mark) is not None for mark in _MARKS)
    name = "output.weight" if "output.weight" in checkpoint.tensors else "embedding.weight"
    if checkpoint.architecture not in _ARCHITECTURES or not known or name not in checkpoint.tensors:
        return None
    answers = [tokenizer.encode(word, add_special=False) for word in ("yes", "no")]
    if any(len(tokens) != 1 for tokens in answers):
        return None
    yes, no = (_row(checkpoint, name, token) for (token,) in answers)
    return Reranker(yes - no, tokenizer)


def _row(checkpoint: Checkpoint, name: str, row: int) -> NDArray[np.float32]:
    """One row (columns,) of a matrix. Reads only this row if the file stores it unchanged."""
    tensor = checkpoint.tensors[name]
    rows, columns = tensor.shape
    size = tensor.nbytes // rows
    if tensor.place is None:
        raw = checkpoint.read(name)[row * size : (row + 1) * size]
    else:
        place = tensor.place
        raw = np.frombuffer(os.pread(place.descriptor, size, place.offset + row * size), np.uint8)
    return dequantize(raw, tensor.type, (columns,))
