"""Errors of single sequences and figures of logits, the same on every device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import EngineFailedError, NonFiniteLogitsError, NothingAllowedError
from heddle.sizes import counted
from heddle.step import LogitsSummary

if TYPE_CHECKING:
    import numpy.typing as npt

    from heddle.step import Chunk


def non_finite(chunk: Chunk, right: int = 0) -> NonFiniteLogitsError:
    """The error of a sequence whose logits or states are NaN or infinite after `right` guesses
    that are right."""
    tokens = chunk.start + chunk.known + right
    return NonFiniteLogitsError(
        f"the model's numbers are NaN or infinite after {counted(tokens, 'token')}. The model file"
        " may be damaged in weights that these tokens use: fetch it again, or send another prompt"
    )


def nothing_allowed(chunk: Chunk, right: int = 0) -> NothingAllowedError:
    """The error of a sequence whose constraints leave no token to choose after `right` guesses
    that are right."""
    tokens = chunk.start + chunk.known + right
    return NothingAllowedError(
        f"the constraints leave no token to choose after {counted(tokens, 'token')}: bad_words"
        " excludes all tokens that the grammar, or the text to continue, allows. Send fewer"
        " bad_words",
        param="bad_words",
    )


def sampler_failed(cause: Exception) -> EngineFailedError:
    """The error of a sequence whose sampler cannot be made, or raised `cause`."""
    return EngineFailedError(f"the request's sampler failed: {cause}")


def summarize(logits: npt.NDArray[np.float32]) -> LogitsSummary:
    """Count and average logits of any shape."""
    finite = logits[np.isfinite(logits)]
    nan, empty = int(np.isnan(logits).sum()), not finite.size
    return LogitsSummary(
        length=logits.size,
        nan=nan,
        inf=logits.size - finite.size - nan,
        minimum=math.nan if empty else float(finite.min()),
        maximum=math.nan if empty else float(finite.max()),
        mean=math.nan if empty else float(finite.mean(dtype=np.float64)),
    )
