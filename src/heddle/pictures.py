"""Pictures in prompts: decoded pictures, prompts that hold some, and what a model with eyes offers.

A picture goes through these forms::

    Picture  --Sighted.lay-->  Look  --encoder-->  rows of the Look  --Chunk.sight-->  step
    pixels     (any thread)    scene               (n, columns)

The rows of a picture stand in a sequence where its tokens are. In the prefix tree, each of these
tokens has the key of its look, which no token has. So prefixes with equal pictures are shared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from heddle.step import Sight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from heddle.step import States


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A decoded picture.

    Attributes:
        pixels: (height, width, 3) uint8: red, green, blue. It is upright, contiguous and read-only.
        digest: hex SHA-256 of height, width and pixels.
    """

    pixels: NDArray[np.uint8]
    digest: str

    @classmethod
    def of(cls, pixels: NDArray[np.uint8]) -> Self:
        """The picture with these pixels, which nobody may write to any more."""
        pixels.flags.writeable = False
        height, width, _ = pixels.shape
        size = height.to_bytes(4, "little") + width.to_bytes(4, "little")
        return cls(pixels, hashlib.sha256(size + pixels.tobytes()).hexdigest())


@dataclass(frozen=True, slots=True)
class Illustrated:
    """A prompt with pictures.

    Attributes:
        text: has the mark of the model's eyes once for each picture, in their order.
        pictures: the pictures.
        rendered: whether a chat template wrote the text, with the tokens that begin it.
    """

    text: str
    pictures: tuple[Picture, ...]
    rendered: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What eyes read of a picture, or of one of its tiles: T patches. No other scene changes a bit.

    Attributes:
        values: (T, columns) float32.
        places: (T, axes) int32, for rotations.
        runs: (T, kinds, 2) int32: runs [begin, end) of patches that see one another.
    """

    values: States
    places: NDArray[np.int32]
    runs: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Look:
    """A picture as one model sees it. All requests with equal pictures share it while it lives.

    Attributes:
        key: stands for each of its tokens in the prefix tree; see
            :class:`heddle.state.PictureKeys`.
        count: the number of its rows.
        scenes: what the eyes read; empty once there are rows.
        arrange: makes the rows from what the eyes made of all scenes, one after the other; None:
            they are the same.
        rows: (count, columns) float32; None until the eyes have made them.
    """

    key: int
    count: int
    scenes: Sequence[Scene]
    arrange: Callable[[States], States] | None = None
    rows: States | None = None

    def take(self, made: States) -> None:
        """Take what the eyes made of all scenes."""
        rows = made if self.arrange is None else self.arrange(made)
        assert len(rows) == self.count, f"{len(rows)} rows of a picture of {self.count}"
        self.rows, self.scenes = rows, ()


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of a sequence that are rows of one look.

    Attributes:
        first: position of the first token.
        look: the look.
        begin: its row that stands there.
        count: the number of tokens.
    """

    first: int
    look: Look
    begin: int
    count: int

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.first + self.count


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """The pictures of one sequence.

    Attributes:
        spans: tokens that are rows of pictures, in ascending order.
        places: (prompt, axes) int32, what rotations of several axes turn by; None: the positions.
        whole: whether all tokens of a span see one another, so that a chunk holds all of them.
    """

    spans: Sequence[Span]
    places: NDArray[np.int32] | None = None
    whole: bool = False

    def keys(self, tokens: Sequence[int]) -> list[int]:
        """The tokens, with the keys of looks in the place of theirs."""
        keys = list(tokens)
        for span in self.spans:
            keys[span.first : span.end] = [span.look.key] * span.count
        return keys

    @property
    def least_chunk(self) -> int:
        """The most tokens that one chunk has to hold, because they see one another."""
        return max((span.count for span in self.spans), default=1) if self.whole else 1

    def wanted(self, computed: int) -> list[Look]:
        """The looks without rows that a sequence needs after its first `computed` tokens."""
        if computed >= self._end:
            return []
        needed = (span.look for span in self.spans if span.end > computed)
        return [look for look in needed if look.rows is None]

    def cut(self, start: int, count: int, room: int) -> int:
        """How many tokens from `start` on a chunk may have, of `count` that it should have.

        A chunk that would end within tokens that see one another ends before them, or if it begins
        there, behind them. 0 if the chunk would then have more than `room` tokens.
        """
        end = start + count
        for span in self.spans if self.whole else ():
            if span.first < end < span.end:
                end = span.first if span.first > start else span.end
        return end - start if end - start <= room else 0

    def sight(self, start: int, end: int) -> Sight | None:
        """What a chunk of the positions [start, end) reads; None: as if there were no pictures."""
        if self.places is None and start >= self._end:
            return None
        import numpy as np  # here, because programs that load no model import this module

        rows: list[tuple[int, States]] = []
        positions = np.arange(start, end, dtype=np.int32)
        runs = np.stack([positions, positions + 1], axis=-1)[:, None]
        for span in self.spans:
            first, last = max(span.first, start), min(span.end, end)
            if first < last:
                assert span.look.rows is not None, "a sequence waits for the rows of its pictures"
                begin = span.begin - span.first
                rows.append((first - start, span.look.rows[first + begin : last + begin]))
                runs[first - start : last - start, 0] = span.first, span.end
        places = None if self.places is None else self._places(start, end)
        if places is None and not rows:
            return None
        return Sight(places, runs if self.whole and rows else None, rows)

    @property
    def _end(self) -> int:
        """The position after the last token of a picture."""
        return self.spans[-1].end if self.spans else 0

    def _places(self, start: int, end: int) -> NDArray[np.int32]:
        """The places at positions [start, end). After the prompt, all axes go on together."""
        import numpy as np

        assert self.places is not None, "the model has rotations of several axes"
        prompt = len(self.places)
        behind = np.arange(max(start, prompt), end, dtype=np.int32) + (
            int(self.places.max()) + 1 - prompt
        )
        after = np.repeat(behind[:, None], self.places.shape[1], axis=1)
        return np.concatenate([self.places[start:end], after]).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Laid:
    """A prompt with pictures as token ids.

    Attributes:
        tokens: token ids. Where rows of pictures stand, all ids are the same.
        pictures: the pictures of the sequence.
    """

    tokens: list[int]
    pictures: Pictures


class Encoder(Protocol):
    """Makes rows of pictures, on the threads that compute steps. One thread calls all methods."""

    def advance(self, wanted: Sequence[Look], seconds: float) -> None:
        """Work on looks without rows for about so long, at least one piece.

        Looks that are ready get their rows and lose their scenes. `wanted` may change from call to
        call: what nobody wants any more is given up.

        Raises:
            StepAbandonedError: another thread has called `abandon`.
            EngineFailedError: the eyes failed. They can go on with other looks.
        """
        ...

    def abandon(self) -> None:
        """End the work in flight soon, and all later work at once. Any thread may call this."""
        ...

    def close(self) -> None:
        """Free threads and memory. Idempotent."""
        ...


class Sighted(Protocol):
    """What a model with eyes offers. Any thread may call all methods.

    Attributes:
        mark: what the chat template writes for a picture.
        encoder: makes the rows.
        summary: the eyes in a few words for people.
        bits: equal only if two loads in one process make the same rows of the same scenes.
    """

    @property
    def mark(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def bits(self) -> tuple[object, ...]: ...

    def lay(self, prompt: Illustrated) -> Laid:
        """Prepare the pictures and make token ids. It takes 10 to 100 ms for each new picture.

        Raises:
            InvalidRequestError: the text has not one mark for each picture, or a picture cannot be
                seen.
        """
        ...

    def count(self, width: int, height: int) -> int:
        """How many tokens a picture of this size takes, those around its rows included."""
        ...
