"""Errors of single sequences, with the same text on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import NonFiniteLogitsError, NothingAllowedError

if TYPE_CHECKING:
    from heddle.step import Chunk


def non_finite(chunk: Chunk) -> NonFiniteLogitsError:
    """The error of a sequence whose logits or states are NaN or infinite."""
    return NonFiniteLogitsError(
        f"the model's numbers after the first {chunk.start + len(chunk.tokens)} tokens are NaN or"
        " infinite. The model file may be damaged in weights that these tokens use: fetch it again,"
        " or send another prompt"
    )


def nothing_allowed(chunk: Chunk) -> NothingAllowedError:
    """The error of a sequence whose constraints leave no token to choose."""
    return NothingAllowedError(
        f"the constraints leave no token to choose after {chunk.start + len(chunk.tokens)} tokens:"
        " bad_words excludes all tokens that the grammar, or the text to continue, allows. Send"
        " fewer bad_words",
        param="bad_words",
    )
