"""Samplers of slots: on the device where it has the request's chain, else the native samplers.

Native samplers get rows of logits that come to the host.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from heddle import _native
from heddle.executors.cpu.logit_edits import LogitEdits
from heddle.executors.cpu.samplers import bound_sampler, make_sampler, pick_failure
from heddle.executors.failures import sampler_failed
from heddle.extensions.torch.device_sampling import DevicePicks, prepare, runs_here
from heddle.extensions.torch.slot_history import SlotHistory
from heddle.extensions.torch.staging import sent
from heddle.sampling_params import SamplingParams
from heddle.step import Deferred, Failed, Sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from heddle.errors import HeddleError
    from heddle.executors.cpu.logit_edits import EditSource
    from heddle.extensions.torch.chunk_rows import ChunkRows
    from heddle.extensions.torch.readout import SampledLogits
    from heddle.extensions.torch.sampled_row import SampledRow
    from heddle.step import Binding, Chunk
    from heddle.token_rules import LogitEdit

    Logits = NDArray[np.float32]
    Outcome = Sampled | Failed | Deferred

_log = logging.getLogger(__name__)

_ISA = _native.isa_levels()[0]


class _Edits:
    """The edits for the next picks of a slot."""

    def __init__(self) -> None:
        self.edits: tuple[LogitEdit, ...] = ()

    def edit(self, *edits: LogitEdit) -> None:
        """See `heddle.executors.cpu.logit_edits.EditedSampler`."""
        self.edits = edits


class _HostSampler(_Edits):
    """The native sampler of a slot. It observes the tokens that it picks."""

    def __init__(self, native: _native.Sampler) -> None:
        super().__init__()
        self._native = native

    @property
    def mu(self) -> float | None:
        return self._native.mu

    def picks(self, rows: Iterable[Logits]) -> Iterator[_native.Pick]:
        """Picks from rows of logits (vocabulary,), one at a time, as long as there are edits."""
        for place, logits in enumerate(rows):
            if self.edits and place >= len(self.edits):
                return
            self._native.edit(*self.edits[place : place + 1])
            token, logprob, top = self._native.pick(_ISA, logits)
            yield token, logprob if self._native.logprobs >= 0 else math.nan, top

    def observe(self, tokens: Sequence[int]) -> None:
        """Nothing: it has observed them."""


class _DeviceSampler(_Edits):
    """The history of a slot whose chain runs on the device."""

    mu = None

    def __init__(self, history: SlotHistory) -> None:
        super().__init__()
        self._history = history
        self._unknown = 0  # steps that were started and not finished

    def rows(self, chunk: Chunk) -> list[SampledRow]:
        """The inputs of the chain for the token after the known tokens, and after each guess."""
        guesses = chunk.tokens[chunk.known :]
        masks = [edit.mask for edit in self.edits]
        rows = self._history.rows(guesses, masks, follows_unknown=self._unknown > 0)
        self._unknown += 1
        return rows

    def observe(self, tokens: Sequence[int]) -> None:
        """Record that the sequence continues with `tokens`."""
        self._unknown -= 1
        for token in tokens:
            self._history.append(token)


class StartedPicks(NamedTuple):
    """The samples that a step has started to draw.

    Attributes:
        chunks: the chunks that sample.
        problems: why slots cannot sample.
        on_device: the work asked of the device; None if it samples nothing.
        ranges: for each slot that the device samples for, the begin and the end of its picks.
        logits: of the rows to sample from.
    """

    chunks: Sequence[ChunkRows]
    problems: dict[int, Deferred | Failed]
    on_device: DevicePicks | None
    ranges: dict[int, tuple[int, int]]
    logits: SampledLogits


class Samplers:
    """The samplers and grammars of all slots.

    Attributes:
        edits: makes the edits of logits.
        latest: the token (slots,) int64 that each slot sampled last on the device, without guesses.
    """

    def __init__(self, vocabulary: int, device: torch.device, device_slots: int) -> None:
        """The device runs the chains that it can run, if `device_slots`, its slots, are not 0."""
        self._vocabulary = vocabulary
        self._on_device = device_slots > 0
        self.latest = torch.zeros(device_slots, dtype=torch.int64, device=device)
        if device_slots:
            prepare(device)
        self._samplers: dict[int, _HostSampler | _DeviceSampler] = {}
        self._failures: dict[int, HeddleError] = {}
        self.edits: EditSource = LogitEdits()

    def bind(self, binding: Binding, params: SamplingParams) -> None:
        """Give the binding's slot its sampler. If it cannot be made, the slot's samples fail."""
        self._failures.pop(binding.slot, None)
        try:
            self._samplers[binding.slot] = self._sampler(binding, params)
        except Exception as cause:
            _log.exception("a sampler failed")
            self._failures[binding.slot] = sampler_failed(cause)
            native = make_sampler(SamplingParams(temperature=0, seed=0))
            self._samplers[binding.slot] = _HostSampler(native)
        self.edits.bind(binding)

    def _sampler(self, binding: Binding, params: SamplingParams) -> _HostSampler | _DeviceSampler:
        if self._on_device and runs_here(params, binding.rules):
            return _DeviceSampler(SlotHistory(binding, params, self._vocabulary))
        return _HostSampler(bound_sampler(binding, params))

    def begin_edits(self, chunks: Sequence[Chunk]) -> Callable[[], None] | None:
        """Begin to make edits; see `LogitEdits.begin_edits`."""
        return self.edits.begin_edits(chunks, self._samplers)

    def start(self, chunks: Sequence[ChunkRows], logits: SampledLogits) -> StartedPicks:
        """Ask the device to sample for these chunks. This does not wait for it."""
        found = {one.chunk.slot: self._problem(one.chunk.slot) for one in chunks}
        problems = {slot: problem for slot, problem in found.items() if problem is not None}
        rows: list[SampledRow] = []
        numbers: list[int] = []
        ranges, last = {}, {}
        for one in chunks:
            slot, sampler = one.chunk.slot, self._samplers[one.chunk.slot]
            if slot not in problems and isinstance(sampler, _DeviceSampler):
                own = sampler.rows(one.chunk)
                rows += own
                numbers += one.sampled[: len(own)]
                ranges[slot] = len(rows) - len(own), len(rows)
                last[slot] = len(rows) - 1
        if not rows:
            return StartedPicks(chunks, problems, None, ranges, logits)
        picks = DevicePicks(logits.of(numbers), rows, self.latest)
        pairs = sent(np.array([*last.items()], np.int64), self.latest.device)
        self.latest[pairs[:, 0]] = picks.tokens[pairs[:, 1]]
        return StartedPicks(chunks, problems, picks, ranges, logits)

    def finish(self, started: StartedPicks) -> list[list[Outcome]]:
        """Wait for the tokens. Returns the outcomes of each chunk, in their order."""
        picks = self._from_device(started) | self._on_the_host(started)
        results: list[list[Outcome]] = []
        for one in started.chunks:
            slot, sampler = one.chunk.slot, self._samplers[one.chunk.slot]
            if slot in started.problems:
                results.append([started.problems[slot]])
                continue
            outcomes = list(_outcomes(one, sampler, picks[slot], started.logits))
            tokens = [one.token for one in outcomes if isinstance(one, Sampled)]
            sampler.observe(tokens)
            if len(tokens) == len(outcomes):
                self.edits.observe(slot, tokens)
            results.append(outcomes)
        return results

    def _problem(self, slot: int) -> Deferred | Failed | None:
        """Why the slot cannot sample in this step."""
        late = self.edits.late(slot)
        if late is not None:
            return Deferred(slot, late)
        failure = self._failures.get(slot) or self.edits.failure(slot)
        return None if failure is None else Failed(slot, failure)

    def _from_device(self, started: StartedPicks) -> dict[int, Iterator[_native.Pick]]:
        """The picks of the slots whose chains the device ran, after all guesses."""
        if started.on_device is None:
            return {}
        picks = started.on_device.read()
        return {slot: iter(picks[begin:end]) for slot, (begin, end) in started.ranges.items()}

    def _on_the_host(self, started: StartedPicks) -> dict[int, Iterator[_native.Pick]]:
        """The picks of native samplers. They pick only what their caller takes."""
        found = []
        for one in started.chunks:
            sampler = self._samplers[one.chunk.slot]
            if isinstance(sampler, _HostSampler) and one.chunk.slot not in started.problems:
                found.append((one, sampler))
        if not found:
            return {}
        rows = iter(started.logits.of(row for one, _ in found for row in one.sampled).cpu().numpy())
        return {
            one.chunk.slot: sampler.picks([*islice(rows, len(one.sampled))])
            for one, sampler in found
        }


def _outcomes(
    rows: ChunkRows,
    sampler: _HostSampler | _DeviceSampler,
    picks: Iterator[_native.Pick],
    logits: SampledLogits,
) -> Iterator[Outcome]:
    """The outcomes of the picks up to the first that is not the guess at its place."""
    chunk = rows.chunk
    for right, (token, logprob, top) in enumerate(picks):
        row = partial(logits.on_host, rows.sampled[right])
        failure = pick_failure(token, chunk, right, row)
        if failure is not None:
            yield Failed(chunk.slot, failure)
            return
        yield Sampled(chunk.slot, token, logprob, tuple(top), sampler.mu)
        if right == chunk.guesses or token != chunk.tokens[chunk.known + right]:
            return
