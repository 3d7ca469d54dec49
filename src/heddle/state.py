"""The state that a model's layers keep of a sequence, and how a budget of bytes is divided.

A model names the kinds of state of each of its layers: one, none, or `Fixed` beside another. Layers
of one kind form a group. The scheduler and the prefix cache account for groups and know no models::

    Pages       keys and values of all positions,   pages of 32 tokens, as long as nodes name them
                or their latents
    Window(n)   keys and values of the last n       pages too; given back behind the window
    Fixed(b)    b bytes at any position             one state for each slot, and snapshots
    Shared(i)   nothing                             the layer reads the keys and values of layer i

Layers of one group keep keys and values of one shape, so all pages of a group have one size. Layers
that keep all positions in another shape than the first such layer are a windowed group whose window
is the context.

Each sequence has a list of pages for the group `Pages`, even if no layer belongs to the group,
because these pages count positions. So a recurrent model has pages of 0 bytes, and snapshots.
"""

from __future__ import annotations

import hashlib
import os
import threading
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PAGE_TOKENS = 32
"""Tokens per KV page, in all of Heddle."""

TokenArray = array  # of C ints: 4 bytes a token, compared at memory speed, no garbage collection

FIRST_KEY = 1 << 30
"""The first number that stands for tokens of a picture in the prefix tree. Token ids are lower."""

_MOST_KEYS = 1 << 16


class PictureKeys:
    """Numbers that stand for pictures in prefix trees, one for each content. Any thread may use it.

    Requests go from an engine to the next one, so all engines of a process share them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = FIRST_KEY
        self._contents: dict[int, bytes] = {}
        self._keys: dict[bytes, int] = {}
        self._unknown = os.urandom(32)

    def key_of(self, content: bytes) -> int:
        """The key of a content, of which this is a digest of 32 bytes."""
        with self._lock:
            key = self._keys.get(content)
            if key is None:
                key, self._next = self._next, self._next + 1
                self._keys[content], self._contents[key] = key, content
                if len(self._keys) > _MOST_KEYS:
                    del self._keys[self._contents.pop(next(iter(self._contents)))]
            return key

    def content_of(self, key: int) -> bytes:
        """The digest of the content with this key; of forgotten ones, bytes of this process."""
        known = self._contents.get(key)
        return known or hashlib.sha256(self._unknown + key.to_bytes(4, "little")).digest()


PICTURE_KEYS = PictureKeys()

SNAPSHOT_TOKENS = 256
"""Snapshots of fixed-size state are taken at multiples of this, and at the ends of prompts, unless
the setting `state_every` says otherwise."""

_STATES_OF_SLOT = 2
"""A slot has two states. A step that may have to compute its last token again writes to the other.
Memory becomes resident only when it is used."""

_WINDOW_ROOM = 2
"""Factor on the pages that full slots need of a windowed group. The surplus is for prefixes."""


def pages_for(tokens: int) -> int:
    """Number of pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class KvShape:
    """The keys and values of one position in one layer: `heads` heads of `dim` elements.

    Without `has_values`, the layer stores keys only, and values are the first elements of the keys
    (latent attention).
    """

    heads: int
    dim: int
    has_values: bool = True

    @property
    def parts(self) -> int:
        """Vectors of a head and position: the key, and the value if it is stored."""
        return 2 if self.has_values else 1


NO_SHAPE = KvShape(1, 32)
"""The shape of a group without layers. Its pages have 0 bytes."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Keys and values of all positions."""

    shape: KvShape


@dataclass(frozen=True, slots=True)
class Window:
    """Keys and values of the last `positions` positions, the newest included."""

    positions: int
    shape: KvShape


@dataclass(frozen=True, slots=True)
class Fixed:
    """A state of `bytes` bytes that each position changes, as in a recurrent layer.

    A multiple of 64, so that all states begin at a line of the processor's cache.
    """

    bytes: int


@dataclass(frozen=True, slots=True)
class Shared:
    """No state: the layer reads the keys and values that layer `layer`, an earlier one, keeps."""

    layer: int


StateKind = Pages | Window | Fixed | Shared


@dataclass(frozen=True, slots=True)
class WindowMemory:
    """Pages of one windowed group.

    Attributes:
        positions: number of positions that a token sees, itself included.
        pages: number of pages.
        page_bytes: bytes of one page, all layers of the group.
        reach: most pages that one sequence holds.
        layers: the model's layers in the group.
        shape: shape of their keys and values.
    """

    positions: int
    pages: int
    page_bytes: int = 0
    reach: int = 1 << 30
    layers: tuple[int, ...] = ()
    shape: KvShape = NO_SHAPE

    def first_page(self, position: int) -> int:
        """Number of the first page that a token at `position`, or a later one, sees."""
        return max(0, position - self.positions + 1) // PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class StateMemory:
    """The memory of an executor for state.

    Attributes:
        pages: pages of the group of all positions.
        page_bytes: bytes of one of these pages, all layers of the group.
        windows: the windowed groups.
        snapshots: number of snapshots of fixed-size state.
        snapshot_bytes: bytes of one snapshot, all layers; 0 if no layer is recurrent.
        snapshot_tokens: snapshots are taken at multiples of this.
        layers: the model's layers in the group of all positions.
        shape: shape of their keys and values.
        fixed: each layer with fixed-size state, and the bytes of that state. A snapshot holds them
            in this order.
        states: number of fixed-size states of slots.
    """

    pages: int
    page_bytes: int = 0
    windows: tuple[WindowMemory, ...] = ()
    snapshots: int = 0
    snapshot_bytes: int = 0
    snapshot_tokens: int = SNAPSHOT_TOKENS
    layers: tuple[int, ...] = ()
    shape: KvShape = NO_SHAPE
    fixed: tuple[tuple[int, int], ...] = ()
    states: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all pages, states and snapshots."""
        windows = sum(window.pages * window.page_bytes for window in self.windows)
        states = (self.states + self.snapshots) * self.snapshot_bytes
        return self.pages * self.page_bytes + windows + states

    @property
    def token_page_bytes(self) -> int:
        """Bytes of the keys and values of 32 tokens, in the pages of all groups."""
        return self.page_bytes + sum(window.page_bytes for window in self.windows)


@dataclass(frozen=True, slots=True)
class Load:
    """The load that the memory must serve.

    Attributes:
        slots: sequences at once.
        context: most tokens of a sequence.
        batch_tokens: most tokens of a step.
        state_every: tokens between two snapshots of fixed-size state.
    """

    slots: int
    context: int
    batch_tokens: int
    state_every: int = SNAPSHOT_TOKENS

    @property
    def sequence_pages(self) -> int:
        """Number of pages of the longest sequence."""
        return pages_for(self.context)

    def reach(self, window: Window) -> int:
        """Most pages of a windowed group that one sequence holds: the pages that a chunk sees."""
        seen = window.positions + self.batch_tokens - 1
        return min(-(-(seen - 1) // PAGE_TOKENS) + 1, self.sequence_pages)


def divide(
    kinds: Sequence[Sequence[StateKind]],
    load: Load,
    budget: int,
    bytes_of_page: Callable[[int, KvShape], int],
) -> StateMemory:
    """Divide `budget` bytes among the groups of a model. `kinds` are those of each layer.

    A windowed group gets the pages that its windows need, and as many again for prefixes, but never
    more pages than the group of all positions. The rest goes to the group of all positions, up to
    the pages that the slots can fill, and to snapshots: one for every `state_every` tokens, but as
    many bytes as the pages if there are fewer. If a window spares no page, because the context is
    short or a step is large, it counts as all positions.

    `bytes_of_page` returns the bytes of a page with a number of layers whose keys and values have a
    shape. If the budget is too small, the result has less than one page.
    """
    shape = _shape_of_pages(kinds)
    global_layers, windows, fixed = _group(kinds, load, shape)
    state_bytes = sum(fixed.values())
    fillable = load.slots * load.sequence_pages
    states = _STATES_OF_SLOT * load.slots if state_bytes else 0
    free = budget - states * state_bytes
    page_bytes = bytes_of_page(len(global_layers), shape) if global_layers else 0
    sizes = {window: bytes_of_page(len(layers), window.shape) for window, layers in windows.items()}
    most = {window: _WINDOW_ROOM * load.slots * load.reach(window) for window in windows}
    each = page_bytes + min(state_bytes * PAGE_TOKENS / load.state_every, page_bytes)
    pages = fillable
    # Limit one group after the other, the group with the fewest pages first.
    unlimited = sorted(windows, key=lambda window: most[window])
    while True:
        room = free - sum(most[w] * sizes[w] for w in windows if w not in unlimited)
        share = each + sum(sizes[w] for w in unlimited)
        pages = min(fillable, max(0, int(room // share))) if share else fillable * (room >= 0)
        if not unlimited or pages <= most[unlimited[0]]:
            break
        unlimited.pop(0)
    snapshots = 0
    if state_bytes:
        used = pages * page_bytes + sum(min(pages, most[w]) * sizes[w] for w in windows)
        affordable = max(0, free - used) // state_bytes
        snapshots = min(-(-pages * PAGE_TOKENS // load.state_every), affordable)
    return StateMemory(
        pages,
        page_bytes,
        tuple(
            WindowMemory(
                w.positions,
                min(pages, most[w]),
                sizes[w],
                load.reach(w),
                tuple(windows[w]),
                w.shape,
            )
            for w in windows
        ),
        snapshots=snapshots,
        snapshot_bytes=state_bytes,
        snapshot_tokens=load.state_every,
        layers=tuple(global_layers),
        shape=shape,
        fixed=tuple(fixed.items()),
        states=states,
    )


def without_last_layer(
    memory: StateMemory, bytes_of_page: Callable[[int, KvShape], int]
) -> tuple[StateMemory, StateMemory]:
    """Separate the last layer, which keeps all positions, from the memory of all layers.

    Returns the memory of the others, and that of this layer alone, as layer 0. Both have as many
    pages. So a model and its prediction head share one budget.
    """
    *layers, _ = memory.layers
    rest = bytes_of_page(len(layers), memory.shape) if layers else 0
    alone = bytes_of_page(1, memory.shape)
    return (
        replace(memory, page_bytes=rest, layers=tuple(layers)),
        StateMemory(memory.pages, alone, layers=(0,), shape=memory.shape),
    )


def _shape_of_pages(kinds: Sequence[Sequence[StateKind]]) -> KvShape:
    """The shape of the group of all positions: that of the first layer that keeps them all."""
    flat = [kind for of_layer in kinds for kind in of_layer]
    of_pages = (kind.shape for kind in flat if isinstance(kind, Pages))
    of_windows = (kind.shape for kind in flat if isinstance(kind, Window))
    return next(of_pages, next(of_windows, NO_SHAPE))


def _group(
    kinds: Sequence[Sequence[StateKind]], load: Load, shape: KvShape
) -> tuple[list[int], dict[Window, list[int]], dict[int, int]]:
    """Layers that keep all positions in `shape`, layers by window, bytes of fixed-size state by
    layer."""
    global_layers: list[int] = []
    windows: dict[Window, list[int]] = {}
    fixed: dict[int, int] = {}
    for layer, of_layer in enumerate(kinds):
        for kind in of_layer:
            match kind:
                case Fixed():
                    fixed[layer] = fixed.get(layer, 0) + kind.bytes
                case Shared():
                    pass
                case Window() if kind.shape != shape or load.reach(kind) < load.sequence_pages:
                    windows.setdefault(kind, []).append(layer)
                case Pages() if kind.shape != shape:
                    windows.setdefault(Window(load.context, kind.shape), []).append(layer)
                case _:
                    global_layers.append(layer)
    return global_layers, windows, fixed
