"""A complete model over the NumPy reference ops. Tests compare executors with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.embedding import Pooling
from heddle.extensions.reference.ops import (
    ReferenceLoader,
    ReferenceOps,
    SequenceCache,
    SequenceChunk,
)
from heddle.models.build import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint

_CHUNK = 512
"""Tokens per forward pass in :meth:`ReferenceModel.logits`; bounds the memory that it takes."""


class ReferenceModel:
    """A model with all weights of a checkpoint in memory as float32. It reads the files only once.

    Attributes:
        vocabulary: number of token ids.

    Raises (on construction):
        UnsupportedModelError: the architecture or the type of a tensor is not supported.
        ModelFileError: a hyperparameter or a tensor is missing or wrong.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._model = build(checkpoint)
        self.vocabulary = self._model.shape.vocabulary
        self._weights: Any = self._model.load(ReferenceLoader(checkpoint))

    def states(self, runs: Sequence[SequenceChunk]) -> NDArray[np.float32]:
        """Last hidden states (T, width), after the final norm, of all tokens of the runs."""
        ops = ReferenceOps(runs)
        states: NDArray[np.float32] = self._model.forward(ops, self._weights, ops.batch())
        return states

    def forward(self, runs: Sequence[SequenceChunk]) -> NDArray[np.float32]:
        """Logits (T, vocabulary) of all tokens of the runs, in order."""
        states = self.states(runs)
        logits: NDArray[np.float32] = self._model.logits(ReferenceOps(runs), self._weights, states)
        return logits

    def logits(
        self, tokens: Sequence[int], kv_type: str = "f32", *, decodes: bool = False
    ) -> NDArray[np.float32]:
        """Logits (len(tokens), vocabulary). Row i scores the tokens that may follow token i.

        :class:`heddle.extensions.reference.ops.SequenceCache` describes `kv_type` and `decodes`.
        """
        cache = SequenceCache(kv_type, decodes)
        starts = range(0, len(tokens), _CHUNK)
        return np.concatenate(
            [self.forward([SequenceChunk(cache, at, tokens[at : at + _CHUNK])]) for at in starts]
        )

    def embedding(self, tokens: Sequence[int], pooling: Pooling) -> NDArray[np.float64]:
        """The embedding (width,) of `tokens`, of length 1, from states in one forward pass.

        With `Pooling.NONE`, the states (tokens, width).
        """
        run = SequenceChunk(SequenceCache(), 0, tokens)
        vector: NDArray[np.float64] = self.states([run]).astype(np.float64)
        if pooling is Pooling.NONE:
            return vector
        first_or_last = vector[0 if pooling is Pooling.CLS else -1]
        vector = vector.mean(axis=0) if pooling is Pooling.MEAN else first_or_last
        vector /= np.sqrt(np.sum(vector * vector))
        return vector
