"""The drafters of a model, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.scheduler.guessing import Drafter
    from heddle.scheduler.sequence import Sequence


def drafters() -> Mapping[str, Callable[[Sequence], Drafter | None]]:
    """Functions that make a drafter for a sequence; None: the sequence can have no such drafter.

    The imports are here because they load the native module.
    """
    from heddle.drafting.engram import EngramDrafter
    from heddle.drafting.lookup import LookupDrafter

    return {"lookup": lambda _: LookupDrafter(), "engram": EngramDrafter.of}
