"""What a model's layers keep of a sequence, and how a budget of bytes is divided among that.

A model names a kind of state for each of its layers. Layers of one kind form a group. The scheduler
and the prefix cache account for groups and know no models::

    Pages       keys and values of all positions    pages of 32 tokens, for as long as nodes live
    Window(n)   keys and values of the last n       pages too; given back behind the window
    Fixed(b)    b bytes, whatever the position      one state a slot, and snapshots of states

Every sequence has a list of pages for the group `Pages`, even if no layer belongs to the group: its
pages count positions. So a recurrent model has pages of 0 bytes, and snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PAGE_TOKENS = 32
"""Tokens per KV page, everywhere."""

SNAPSHOT_TOKENS = 256
"""Snapshots of fixed-size state are taken at multiples of this, and where a prompt ends."""

_WINDOW_ROOM = 2
"""A windowed group has so many times the pages that full slots need: the rest is for prefixes."""


def pages_for(tokens: int) -> int:
    """Pages that hold this many tokens."""
    return -(-tokens // PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class Pages:
    """Keys and values of all positions."""


@dataclass(frozen=True, slots=True)
class Window:
    """Keys and values of the last `positions` positions, the newest included."""

    positions: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """A state of `bytes` bytes that every position changes, as a recurrent layer has it."""

    bytes: int


StateKind = Pages | Window | Fixed


@dataclass(frozen=True, slots=True)
class WindowMemory:
    """Pages of one windowed group.

    Attributes:
        positions: positions a token sees, itself included.
        pages: how many pages there are.
        page_bytes: bytes of one page, all layers of the group.
        reach: most pages that one sequence holds.
        layers: the model's layers in the group.
    """

    positions: int
    pages: int
    page_bytes: int = 0
    reach: int = 1 << 30
    layers: tuple[int, ...] = ()

    def first_page(self, position: int) -> int:
        """Number of the first page that a token at `position`, or a later one, sees."""
        return max(0, position - self.positions + 1) // PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class StateMemory:
    """How much state an executor holds.

    Attributes:
        pages: pages of the group of all positions.
        page_bytes: bytes of one of these pages, all layers of the group.
        windows: the windowed groups.
        snapshots: how many snapshots of fixed-size state there is room for.
        snapshot_bytes: bytes of one snapshot, all layers; 0 if no layer is recurrent.
        snapshot_tokens: snapshots are taken at multiples of this.
        layers: the model's layers in the group of all positions.
    """

    pages: int
    page_bytes: int = 0
    windows: tuple[WindowMemory, ...] = ()
    snapshots: int = 0
    snapshot_bytes: int = 0
    snapshot_tokens: int = SNAPSHOT_TOKENS
    layers: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all pages and snapshots."""
        windows = sum(window.pages * window.page_bytes for window in self.windows)
        return self.pages * self.page_bytes + windows + self.snapshots * self.snapshot_bytes

    @property
    def token_page_bytes(self) -> int:
        """Bytes of the keys and values of 32 tokens, in the pages of all groups."""
        return self.page_bytes + sum(window.page_bytes for window in self.windows)

    def sequence_bytes(self, tokens: int) -> int:
        """Bytes that one sequence of `tokens` tokens holds while it decodes."""
        held = pages_for(tokens) * self.page_bytes + self.snapshot_bytes
        for window in self.windows:
            first = window.first_page(max(0, tokens - 1))
            held += (pages_for(tokens) - first) * window.page_bytes
        return held


@dataclass(frozen=True, slots=True)
class Load:
    """What the memory must serve: sequences at once, tokens of one, tokens of a step."""

    slots: int
    context: int
    batch_tokens: int

    @property
    def sequence_pages(self) -> int:
        """Pages that hold the longest sequence."""
        return pages_for(self.context)

    def reach(self, window: Window) -> int:
        """Pages that one sequence holds of a windowed group, at most: what a chunk sees."""
        seen = window.positions + self.batch_tokens - 1
        return -(-(seen - 1) // PAGE_TOKENS) + 1


def divide(
    kinds: Sequence[StateKind], load: Load, budget: int, bytes_of_page: Callable[[int], int]
) -> StateMemory:
    """Divide `budget` bytes among the groups of a model whose layers keep `kinds`.

    A windowed group gets what its windows need, and as much again for prefixes, but never more
    pages than the group of all positions. Everything else goes to the group of all positions, up to
    what the slots can fill, with a snapshot for every SNAPSHOT_TOKENS tokens. A window that spares
    no page, because the context is short or a step is large, counts as all positions.

    `bytes_of_page` gives the bytes of a page with so many layers. The result has less than one page
    if the budget is too small.
    """
    everything, windows, fixed = _group(kinds, load)
    state_bytes = sum(kind.bytes for kind in fixed)
    fillable = load.slots * load.sequence_pages
    free = budget - (load.slots * state_bytes if state_bytes else 0)
    page_bytes = bytes_of_page(len(everything)) if everything else 0
    sizes = {window: bytes_of_page(len(layers)) for window, layers in windows.items()}
    most = {window: _WINDOW_ROOM * load.slots * load.reach(window) for window in windows}
    each = page_bytes + state_bytes * PAGE_TOKENS / SNAPSHOT_TOKENS
    pages = fillable
    # Groups are limited one after the other, those with the fewest pages first.
    unlimited = sorted(windows, key=lambda window: most[window])
    while True:
        room = free - sum(most[w] * sizes[w] for w in windows if w not in unlimited)
        share = each + sum(sizes[w] for w in unlimited)
        pages = min(fillable, max(0, int(room // share))) if share else fillable
        if not unlimited or pages <= most[unlimited[0]]:
            break
        unlimited.pop(0)
    return StateMemory(
        pages,
        page_bytes,
        tuple(
            WindowMemory(
                w.positions, min(pages, most[w]), sizes[w], load.reach(w), tuple(windows[w])
            )
            for w in windows
        ),
        snapshots=-(-pages * PAGE_TOKENS // SNAPSHOT_TOKENS) if state_bytes else 0,
        snapshot_bytes=state_bytes,
        layers=tuple(everything),
    )


def _group(
    kinds: Sequence[StateKind], load: Load
) -> tuple[list[int], dict[Window, list[int]], list[Fixed]]:
    """Layers that keep all positions, layers by window, and the fixed-size states."""
    everything: list[int] = []
    windows: dict[Window, list[int]] = {}
    fixed: list[Fixed] = []
    for layer, kind in enumerate(kinds):
        match kind:
            case Fixed():
                fixed.append(kind)
            case Window() if load.reach(kind) < load.sequence_pages:
                windows.setdefault(kind, []).append(layer)
            case _:
                everything.append(layer)
    return everything, windows, fixed
