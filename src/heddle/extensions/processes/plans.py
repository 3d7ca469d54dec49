"""Plans and results as messages.

Tuples take a tenth of the time that dataclasses take. Most pages of a sequence are those of its
last step, so only the others travel.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from heddle.extensions.processes.messages import decode, encode
from heddle.step import (
    Binding,
    Chunk,
    Deferred,
    Sampled,
    StepPlan,
    StepResult,
    WindowPages,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from heddle.extensions.processes.rules import RulesReader, RulesWriter
    from heddle.step import Failed


class PlanWriter:
    """Writes the plans of one executor, in their order."""

    def __init__(self, rules: RulesWriter) -> None:
        self._rules = rules
        self._pages: dict[int, list[int]] = {}  # of each slot, in its last chunk

    def write(self, executor: int, step: int, plan: StepPlan) -> bytes:
        """The message of a step. `step` is its number."""
        bindings = [self._binding(one) for one in plan.bindings]
        return encode(
            (
                executor,
                step,
                self._rules.take_dropped(),
                bindings,
                [self._chunk(one) for one in plan.chunks],
                (plan.copies, plan.clears, plan.restores, plan.snapshots)
                if plan.copies or plan.clears or plan.restores or plan.snapshots
                else None,
            )
        )

    def _binding(self, one: Binding) -> tuple[Any, ...]:
        rules = self._rules.write(one.rules)
        return one.slot, one.params, _packed(one.prompt), _packed(one.output), rules, one.mu

    def _chunk(self, one: Chunk) -> tuple[Any, ...]:
        pages, kept = list(one.pages), self._pages.get(one.slot, [])
        same = len(kept) if pages[: len(kept)] == kept else 0
        self._pages[one.slot] = pages
        windows = [(window.first, window.pages, window.source) for window in one.windows]
        rest = (one.score, one.pool, one.guesses, one.uncertain, one.keep_states, one.states)
        return one.slot, one.start, [*one.tokens], same, pages[same:], one.sample, windows, rest


class PlanReader:
    """Reads what a :class:`PlanWriter` wrote, in the same order."""

    def __init__(self, rules: RulesReader) -> None:
        self._rules = rules
        self._pages: dict[tuple[int, int], list[int]] = {}

    def read(self, content: bytes) -> tuple[int, int, StepPlan]:
        """The number of the executor, that of the step, and the plan."""
        executor, step, dropped, bindings, chunks, state = decode(content)
        plan = StepPlan(
            tuple([self._binding(*one) for one in bindings]),
            tuple([self._chunk(executor, *one) for one in chunks]),
            *(state or ()),
        )
        self._rules.drop(dropped)
        return executor, step, plan

    def _binding(
        self, slot: int, params: Any, prompt: bytes, output: bytes, rules: Any, mu: float | None
    ) -> Binding:
        return Binding(
            slot, params, _unpacked(prompt), _unpacked(output), self._rules.read(rules), mu
        )

    def _chunk(
        self,
        executor: int,
        slot: int,
        start: int,
        tokens: list[int],
        same: int,
        more: list[int],
        sample: bool,
        windows: list[Any],
        rest: tuple[Any, ...],
    ) -> Chunk:
        # A new list: the last one may belong to a step that is still computed.
        pages = [*self._pages.get((executor, slot), ())[:same], *more]
        self._pages[executor, slot] = pages
        score, pool, guesses, uncertain, keep_states, states = rest
        return Chunk(
            slot,
            start,
            tokens,
            pages,
            sample,
            score,
            pool,
            [WindowPages(*one) for one in windows],
            guesses,
            uncertain,
            keep_states,
            states,
        )


def write_result(result: StepResult) -> tuple[Any, ...]:
    """A result for a message. The future of a deferred slot stays in the child."""
    return (
        [_outcome(one) for one in result.sampled],
        (result.scored, result.pooled, result.states)
        if result.scored or result.pooled or result.states
        else None,
    )


def read_result(
    written: tuple[Any, ...],
    late: Callable[[int], Future[None] | None],
) -> StepResult:
    """The result that `write_result` wrote. `late` has the future of a deferred slot."""
    sampled, rest = written
    return StepResult(tuple([_read_outcome(one, late) for one in sampled]), *(rest or ()))


def _outcome(one: Sampled | Failed | Deferred) -> Any:
    if isinstance(one, Sampled):
        return one.slot, one.token, one.logprob, one.top, one.mu
    return one.slot if isinstance(one, Deferred) else one


def _read_outcome(
    one: Any, late: Callable[[int], Future[None] | None]
) -> Sampled | Failed | Deferred:
    if isinstance(one, tuple):
        return Sampled(*one)
    if isinstance(one, int):
        ready = late(one)
        assert ready is not None, "only a slot with a late mask is deferred"
        return Deferred(one, ready)
    failed: Failed = one
    return failed


def _packed(tokens: Any) -> bytes:
    return array("q", tokens).tobytes()


def _unpacked(content: bytes) -> list[int]:
    values = array("q")
    values.frombytes(content)
    return values.tolist()
