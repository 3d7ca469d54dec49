"""Edits of logits: the engine's process makes them while the child computes, and sends them.

Compiled grammars cannot travel, nor can logits processors. A step's edits are sent before its
samplers run. The child waits for them without a limit of its own: the engine's process waits a
short time for late ones, and sends what there is.
"""

from __future__ import annotations

import queue
from collections import defaultdict
from concurrent.futures import Future
from typing import TYPE_CHECKING

from heddle.errors import StepAbandonedError
from heddle.executors.cpu.logit_edits import LogitEdits
from heddle.extensions.processes.failures import Failure
from heddle.extensions.processes.messages import Edits, SlotEdits
from heddle.step import Sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from heddle.errors import HeddleError
    from heddle.executors.cpu.logit_edits import EditedSampler
    from heddle.step import Binding, Chunk, Outcome, StepPlan, StepResult
    from heddle.token_rules import LogitEdit


class _Edits:
    """Takes the edits of a slot, in place of its sampler."""

    edits: tuple[LogitEdit, ...] = ()

    def edit(self, *edits: LogitEdit) -> None:
        """See `EditedSampler`."""
        self.edits = edits


class MadeEdits:
    """Makes the edits of an executor's steps, in the engine's process.

    Attributes:
        late: see `LogitEdits.late`.
    """

    def __init__(self) -> None:
        self._made = LogitEdits()
        self.late = self._made.late
        self._slots: set[int] = set()  # whose logits are edited

    def begin(self, plan: StepPlan) -> Callable[[], dict[int, SlotEdits]] | None:
        """Begin to make the edits of a step.

        Returns a function that waits for them; None if the step needs none.
        """
        for binding in plan.bindings:
            self._made.bind(binding)
            (self._slots.add if binding.rules.edits_logits else self._slots.discard)(binding.slot)
        if not self._slots:
            return None
        chunks = [one for one in plan.chunks if one.sample and one.slot in self._slots]
        taken = {one.slot: _Edits() for one in chunks}
        fill = self._made.begin_edits(chunks, taken)
        if fill is None:
            return None

        def wait() -> dict[int, SlotEdits]:
            fill()
            return {slot: self._of(slot, one.edits) for slot, one in taken.items()}

        return wait

    def observe(self, result: StepResult) -> None:
        """Record the tokens of a step."""
        if not self._slots:
            return
        outcomes: defaultdict[int, list[Outcome]] = defaultdict(list)
        for one in result.sampled:
            if one.slot in self._slots:
                outcomes[one.slot].append(one)
        for slot, own in outcomes.items():
            tokens = [one.token for one in own if isinstance(one, Sampled)]
            if len(tokens) == len(own):
                self._made.observe(slot, tokens)

    def _of(self, slot: int, edits: tuple[LogitEdit, ...]) -> SlotEdits:
        failure = self._made.failure(slot)
        is_late = self._made.late(slot) is not None
        return SlotEdits(edits, is_late, None if failure is None else Failure.of(failure))


class GivenEdits:
    """Edits that the engine's process has made; see `EditSource`. The executor calls it.

    `step` is the number of the step that begins next.
    """

    def __init__(self) -> None:
        self.step = 0
        self._came: queue.SimpleQueue[Edits | None] = queue.SimpleQueue()
        self._slots: set[int] = set()  # whose logits are edited
        self._given: dict[int, SlotEdits] = {}

    def give(self, given: Edits | None) -> None:
        """Take the edits of a step; None: there will be none. Another thread calls this."""
        self._came.put(given)

    def bind(self, binding: Binding) -> None:
        """Note whether the binding's slot has edits."""
        self._given.pop(binding.slot, None)
        (self._slots.add if binding.rules.edits_logits else self._slots.discard)(binding.slot)

    def begin_edits(
        self, chunks: Sequence[Chunk], samplers: Mapping[int, EditedSampler]
    ) -> Callable[[], None] | None:
        """See `LogitEdits.begin_edits`."""
        wanted = [(one.slot, samplers[one.slot]) for one in chunks if one.slot in self._slots]
        if not wanted:
            return None
        step = self.step

        def fill() -> None:
            edits = self._take(step)
            for slot, sampler in wanted:
                self._given[slot] = edits[slot]
                sampler.edit(*edits[slot].edits)

        return fill

    def late(self, slot: int) -> Future[None] | None:
        """A future if the slot's edit is late. It never ends: the engine's process has the true
        one."""
        given = self._given.get(slot)
        return Future() if given is not None and given.is_late else None

    def failure(self, slot: int) -> HeddleError | None:
        """See `LogitEdits.failure`."""
        given = self._given.get(slot)
        return None if given is None or given.failure is None else given.failure.error

    def observe(self, slot: int, tokens: Sequence[int]) -> None:
        """Nothing: the engine's process sees the tokens."""

    def _take(self, step: int) -> dict[int, SlotEdits]:
        """Wait for the edits of a step. Edits of steps that failed before may come first."""
        while True:
            given = self._came.get()
            if given is None:
                self._came.put(None)
                raise StepAbandonedError("the step was abandoned")
            if given.step == step:
                return given.slots
