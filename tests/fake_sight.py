"""Pictures without pixels: an executor that reads their rows, and eyes that make them.

A row of a picture says the number of the picture and its own. The executor puts a token in its
place that no text has. So its outputs depend on pictures, and a page with another picture is found
like a page with another text.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fake_executor import FakeExecutor
from heddle.pictures import Laid, Look, Pictures, Scene, Span
from heddle.state import FIRST_KEY
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.pictures import Illustrated
    from heddle.scheduler.sequence import Sequence as SchedulerSequence
    from heddle.step import Binding, Chunk, StepPlan

ROW_TOKEN = 27
_FIRST, _MOST_ROWS = 1000, 1000


def rows_of(number: int, count: int) -> np.ndarray:
    """The rows of picture `number`."""
    return np.array([[number, row] for row in range(count)], np.float32)


def look_at(number: int, count: int, *, seen: bool = True) -> Look:
    """A look at picture `number`, whose rows are known if it was `seen`."""
    scene = Scene(np.full((count, 1), number, np.float32), *[np.zeros((count, 2), np.int32)] * 2)
    rows = rows_of(number, count) if seen else None
    return Look(FIRST_KEY + number, count, () if seen else (scene,), None, rows)


def lay(*parts: Look | Sequence[int], whole: bool = False, axes: int = 0) -> Laid:
    """A prompt of token ids and looks. With `axes`, a picture has one place on all of them."""
    tokens: list[int] = []
    spans, places = [], list[int]()
    place = 0
    for part in parts:
        if isinstance(part, Look):
            spans.append(Span(len(tokens), part, 0, part.count))
            tokens += [ROW_TOKEN] * part.count
            places += [place] * part.count
            place += 1
        else:
            tokens += part
            places += range(place, place + len(part))
            place += len(part)
    stacked = np.repeat(np.array(places, np.int32)[:, None], axes, axis=1) if axes else None
    return Laid(tokens, Pictures(spans, stacked, whole=whole))


def shown(tokens: Sequence[int], pictures: Pictures | None) -> list[int]:
    """The tokens as the executor sees them, with the rows of pictures in the place of theirs."""
    seen = list(tokens)
    for span in pictures.spans if pictures is not None else ():
        number = span.look.key - FIRST_KEY
        first = _FIRST + _MOST_ROWS * number + span.begin
        seen[span.first : span.end] = range(first, first + span.count)
    return seen


@dataclass
class SeeingExecutor(FakeExecutor):
    """Sees pictures of the sequences in `holders`, the slots of the scheduler."""

    holders: Sequence[SchedulerSequence | None] = ()

    def submit(self, plan: StepPlan) -> None:
        bindings = tuple(map(self._bound, plan.bindings))
        chunks = tuple(map(self._seen, plan.chunks))
        super().submit(replace(plan, bindings=bindings, chunks=chunks))

    def make_encoder(self, eyes: Any, checkpoint: Any, most: int) -> Any:
        raise NotImplementedError

    def _bound(self, binding: Binding) -> Binding:
        holder = self.holders[binding.slot]
        assert holder is not None
        return replace(binding, prompt=shown(binding.prompt, holder.pictures))

    def _seen(self, chunk: Chunk) -> Chunk:
        """The chunk with what it reads of pictures, and nothing but that."""
        holder = self.holders[chunk.slot]
        assert holder is not None
        pictures, sight, end = holder.pictures, chunk.sight, chunk.start + len(chunk.tokens)
        if pictures is None:
            assert sight is None
            return chunk
        if pictures.whole:
            met = [one for one in pictures.spans if one.first < end and chunk.start < one.end]
            assert all(one.end <= end for one in met), "a picture is cut"
        if pictures.places is not None:
            assert sight is not None
            assert sight.places is not None
            known, last = pictures.places[chunk.start : end], int(pictures.places[-1, 0])
            further = last + 1 + np.arange(max(0, chunk.start - len(pictures.places)), max(
                0, end - len(pictures.places)
            ))  # fmt: skip
            assert [*known[:, 0], *further] == sight.places[:, 0].tolist()
        tokens = list(chunk.tokens)
        for first, rows in sight.rows if sight is not None else ():
            for at, (number, row) in enumerate(rows.astype(int).tolist(), first):
                assert tokens[at] == ROW_TOKEN
                tokens[at] = _FIRST + _MOST_ROWS * number + row
        score = chunk.score
        if score is not None:
            whole = shown(holder.tokens, pictures)
            after = chunk.start + score.first + 1
            score = replace(score, targets=whole[after : after + len(score.targets)])
        return replace(chunk, tokens=tokens, score=score)


@dataclass
class Sketcher:
    """An encoder that makes the rows of one look a turn.

    It `makes` no rows if a picture is to take longer. `before` runs first, with the looks. While
    the `gate` is closed, a turn waits; `entered` is set when one has begun.
    """

    before: Callable[[Sequence[Look]], None] = lambda looks: None
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    turns: list[list[Look]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    makes: bool = True
    abandoned: bool = False
    closed: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    def advance(self, wanted: Sequence[Look], seconds: float) -> None:
        self.turns.append(list(wanted))
        self.seconds.append(seconds)
        self.entered.set()
        assert self.gate.wait(PATIENCE), "the test never opened the gate"
        self.before(wanted)
        if wanted and self.makes:
            look = wanted[0]
            number = look.key - FIRST_KEY
            self.made.append(number)
            look.take(rows_of(number, look.count))

    def abandon(self) -> None:
        self.abandoned = True
        self.gate.set()

    def close(self) -> None:
        self.closed = True


class SketchedEyes:
    """See :class:`heddle.pictures.Sighted`. Prompts come laid out."""

    mark, summary = "<image>", "fake"

    def __init__(self, encoder: Sketcher, bits: tuple[object, ...] = ()) -> None:
        self.encoder = encoder
        self.bits = bits

    def lay(self, prompt: Illustrated) -> Laid:
        raise NotImplementedError

    def count(self, width: int, height: int) -> int:
        raise NotImplementedError
