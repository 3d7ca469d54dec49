"""Errors of single sequences, with the same words whatever the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import NonFiniteLogitsError, NothingAllowedError

if TYPE_CHECKING:
    from heddle.step import Chunk


def non_finite(chunk: Chunk) -> NonFiniteLogitsError:
    """The error of a sequence whose logits or states are NaN or infinite."""
    return NonFiniteLogitsError(
        f"the model's numbers after the first {chunk.start + len(chunk.tokens)} tokens are NaN or"
        " infinite, so nothing can be read from them; the model file may be damaged where these"
        " tokens lead: fetch it again, or send another prompt"
    )


def nothing_allowed(chunk: Chunk) -> NothingAllowedError:
    """The error of a sequence whose constraints leave no token to choose."""
    return NothingAllowedError(
        f"after {chunk.start + len(chunk.tokens)} tokens there is none that may come next: what"
        " the grammar, or the text to go on with, allows is excluded by bad_words; send fewer"
        " of them",
        param="bad_words",
    )
