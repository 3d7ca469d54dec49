"""Masks of grammars: the engine's process makes them while the child computes, and sends them.

Compiled grammars cannot travel. A step's masks are sent before its samplers run. The child waits
for them without a limit of its own: the engine's process waits a short time for late ones, and
sends what there is.
"""

from __future__ import annotations

import queue
from collections import defaultdict
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeAlias

from heddle.errors import StepAbandonedError
from heddle.executors.cpu.grammar_masks import GrammarMasks
from heddle.extensions.processes.messages import SlotMasks
from heddle.step import Sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from heddle.errors import HeddleError
    from heddle.executors.cpu.grammar_masks import MaskedSampler
    from heddle.step import Binding, Chunk, Outcome, StepPlan, StepResult

Given: TypeAlias = "tuple[int, dict[int, SlotMasks]]"
"""The number of a step, and its masks by slot."""


class _Masks:
    """Takes the masks of a slot, in place of its sampler."""

    masks: tuple[bytes, ...] = ()

    def allow_only(self, *masks: bytes) -> None:
        """See `MaskedSampler`."""
        self.masks = masks


class MadeMasks:
    """Makes the masks of an executor's steps, in the engine's process."""

    def __init__(self) -> None:
        self._made = GrammarMasks()
        self._slots: set[int] = set()  # that have a grammar

    def begin(self, plan: StepPlan) -> Callable[[], dict[int, SlotMasks]] | None:
        """Begin to make the masks of a step.

        Returns a function that waits for them; None if the step needs none.
        """
        for binding in plan.bindings:
            self._made.bind(binding)
            (self._slots.discard if binding.rules.grammar is None else self._slots.add)(
                binding.slot
            )
        if not self._slots:
            return None
        chunks = [one for one in plan.chunks if one.sample and one.slot in self._slots]
        taken = {one.slot: _Masks() for one in chunks}
        fill = self._made.begin_masks(chunks, taken)
        if fill is None:
            return None

        def wait() -> dict[int, SlotMasks]:
            fill()
            return {slot: self._of(slot, one.masks) for slot, one in taken.items()}

        return wait

    def late(self, slot: int) -> Future[None] | None:
        """See `GrammarMasks.late`."""
        return self._made.late(slot)

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

    def _of(self, slot: int, masks: tuple[bytes, ...]) -> SlotMasks:
        return SlotMasks(masks, self._made.late(slot) is not None, self._made.failure(slot))


class GivenMasks:
    """Masks that the engine's process has made; see `MaskSource`. The executor calls it.

    `step` is the number of the step that begins next.
    """

    def __init__(self) -> None:
        self.step = 0
        self._came: queue.SimpleQueue[Given | None] = queue.SimpleQueue()
        self._slots: set[int] = set()  # that have a grammar
        self._given: dict[int, SlotMasks] = {}

    def give(self, given: Given | None) -> None:
        """Take the masks of a step; None: there will be none. Another thread calls this."""
        self._came.put(given)

    def bind(self, binding: Binding) -> None:
        """Note whether the binding's slot has a grammar."""
        self._given.pop(binding.slot, None)
        (self._slots.discard if binding.rules.grammar is None else self._slots.add)(binding.slot)

    def begin_masks(
        self, chunks: Sequence[Chunk], samplers: Mapping[int, MaskedSampler]
    ) -> Callable[[], None] | None:
        """See `GrammarMasks.begin_masks`."""
        wanted = [(one.slot, samplers[one.slot]) for one in chunks if one.slot in self._slots]
        if not wanted:
            return None
        step = self.step

        def fill() -> None:
            masks = self._take(step)
            for slot, sampler in wanted:
                self._given[slot] = masks[slot]
                sampler.allow_only(*masks[slot].masks)

        return fill

    def late(self, slot: int) -> Future[None] | None:
        """A future if the slot's mask is late. It never ends: the engine's process has the true
        one."""
        given = self._given.get(slot)
        return Future() if given is not None and given.is_late else None

    def failure(self, slot: int) -> HeddleError | None:
        """See `GrammarMasks.failure`."""
        given = self._given.get(slot)
        return None if given is None else given.failure

    def observe(self, slot: int, tokens: Sequence[int]) -> None:
        """Nothing: the engine's process sees the tokens."""

    def _take(self, step: int) -> dict[int, SlotMasks]:
        """Wait for the masks of a step. Masks of steps that failed before may come first."""
        while True:
            given = self._came.get()
            if given is None:
                self._came.put(None)
                raise StepAbandonedError("the step was abandoned")
            number, masks = given
            if number == step:
                return masks
