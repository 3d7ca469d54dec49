"""Errors of single sequences and figures of logits, the same on every device."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.errors import (
    EngineFailedError,
    NonFiniteLogitsError,
    NothingAllowedError,
)
from heddle.executor import LogitsSummary
from heddle.sizes import counted

if TYPE_CHECKING:
    import numpy.typing as npt

    from heddle.step import Chunk


def non_finite(
    chunk: Chunk, right: int = 0, row: npt.NDArray[Any] | None = None
) -> NonFiniteLogitsError:
    """The error of a sequence whose logits or states are NaN or infinite after `right` guesses
    that are right. `row` has these logits or states; None: they are not kept."""
    tokens = chunk.start + chunk.known + right
    figures = None if row is None else summarize(row)
    return NonFiniteLogitsError(
        f"the model's numbers are NaN or infinite after {counted(tokens, 'token')}"
        f"{'' if figures is None else f' ({figures})'}. The model file may be damaged in weights"
        " that these tokens use: fetch it again, or send another prompt",
        logits=None if figures is None else asdict(figures),
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


def summarize(rows: npt.NDArray[Any]) -> LogitsSummary:
    """Count and average a row of values, or rows of them."""
    finite = rows[np.isfinite(rows)]
    return LogitsSummary(
        length=rows.size,
        nan=int(np.isnan(rows).sum()),
        inf=int(np.isposinf(rows).sum()),
        negative_inf=int(np.isneginf(rows).sum()),
        negative_rows=int((rows < 0).all(-1).sum()),
        minimum=float(finite.min()) if finite.size else None,
        maximum=float(finite.max()) if finite.size else None,
        mean=float(finite.mean(dtype=np.float64)) if finite.size else None,
    )
