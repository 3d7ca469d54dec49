"""Kinds of messages between rank 0 and another rank, beside those of every child."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """Kinds of messages. Rank 0 sends those up to WARM_UP, the others the rest."""

    SETUP = 16
    """The model to load, as JSON: see :class:`heddle.extensions.torch.ranks.setup.Setup`."""
    JOIN = 17
    """All ranks have loaded: connect to them."""
    PLAN = 18
    """A step to compute."""
    READ_PAGE = 19
    """Integers: page, pages of the windowed groups."""
    WRITE_PAGE = 20
    """Those integers, then the rank's part of the bytes."""
    READ_SNAPSHOT = 21
    WRITE_SNAPSHOT = 22
    WARM_UP = 23
    """Prepare for steps, together with all ranks."""
    LOADED = 32
    """Bytes of weights and pages that the rank holds, as JSON."""
    JOINED = 33
    DONE = 34
    """A step is computed: a digest of values that all ranks have alike."""
    CONTENT = 35
    """The rank's part of a page or snapshot."""
    WARM = 36
    """It is prepared."""
