"""Samplers of slots: on the device where it has the request's chain, else the native samplers.

Native samplers get rows of logits that come to the host.
"""

from __future__ import annotations

import logging
import math
from itertools import islice
from typing import TYPE_CHECKING

from heddle import _native
from heddle.executors.cpu.grammar_masks import GrammarMasks
from heddle.executors.cpu.samplers import bound_sampler, make_sampler, pick_failure
from heddle.executors.failures import sampler_failed
from heddle.executors.torch.device_sampling import pick, runs_here
from heddle.executors.torch.slot_history import SlotHistory
from heddle.sampling_params import SamplingParams
from heddle.step import Deferred, Failed, Sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from heddle.errors import HeddleError
    from heddle.executors.cpu.grammar_masks import MaskSource
    from heddle.executors.torch.readout import ChunkRows, SampledLogits
    from heddle.executors.torch.sampled_row import SampledRow
    from heddle.step import Binding, Chunk

    Logits = NDArray[np.float32]
    Outcome = Sampled | Failed | Deferred

_log = logging.getLogger(__name__)

_ISA = _native.isa_levels()[0]


class _Masks:
    """The masks for the next picks of a slot."""

    def __init__(self) -> None:
        self.masks: tuple[bytes, ...] = ()

    def allow_only(self, *masks: bytes) -> None:
        """See `heddle.executors.cpu.grammar_masks.MaskedSampler`."""
        self.masks = masks


class _HostSampler(_Masks):
    """The native sampler of a slot. It observes the tokens that it picks."""

    def __init__(self, native: _native.Sampler) -> None:
        super().__init__()
        self._native = native

    @property
    def mu(self) -> float | None:
        return self._native.mu

    def picks(self, rows: Iterable[Logits]) -> Iterator[_native.Pick]:
        """Picks from rows of logits (vocabulary,), one at a time, as long as there are masks."""
        for place, logits in enumerate(rows):
            if self.masks and place >= len(self.masks):
                return
            self._native.allow_only(*self.masks[place : place + 1])
            token, logprob, top = self._native.pick(_ISA, logits)
            yield token, logprob if self._native.logprobs >= 0 else math.nan, top

    def observe(self, tokens: Sequence[int]) -> None:
        """Nothing: it has observed them."""


class _DeviceSampler(_Masks):
    """The history of a slot whose chain runs on the device."""

    mu = None

    def __init__(self, history: SlotHistory) -> None:
        super().__init__()
        self._history = history

    def rows(self, chunk: Chunk) -> list[SampledRow]:
        """The inputs of the chain for the token after the known tokens, and after each guess."""
        return self._history.rows(chunk.tokens[chunk.known :], self.masks)

    def observe(self, tokens: Sequence[int]) -> None:
        """Record that the sequence continues with `tokens`."""
        for token in tokens:
            self._history.append(token)


class Samplers:
    """The samplers and grammars of all slots. `masks` makes the masks of grammars."""

    def __init__(self, vocabulary: int, *, on_device: bool) -> None:
        """With `on_device`, the device runs the chains that it can run."""
        self._vocabulary = vocabulary
        self._on_device = on_device
        self._samplers: dict[int, _HostSampler | _DeviceSampler] = {}
        self._failures: dict[int, HeddleError] = {}
        self.masks: MaskSource = GrammarMasks()

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
        self.masks.bind(binding)

    def _sampler(self, binding: Binding, params: SamplingParams) -> _HostSampler | _DeviceSampler:
        if self._on_device and runs_here(params, binding.rules):
            return _DeviceSampler(SlotHistory(binding, params, self._vocabulary))
        return _HostSampler(bound_sampler(binding, params))

    def begin_masks(self, chunks: Sequence[Chunk]) -> Callable[[], None] | None:
        """Begin to make masks; see `GrammarMasks.begin_masks`."""
        return self.masks.begin_masks(chunks, self._samplers)

    def sample(self, chunks: Sequence[ChunkRows], logits: SampledLogits) -> list[list[Outcome]]:
        """The outcomes of each chunk, in their order."""
        problems = {one.chunk.slot: self._problem(one.chunk.slot) for one in chunks}
        ready = [one for one in chunks if problems[one.chunk.slot] is None]
        picks = self._on_the_device(ready, logits) | self._on_the_host(ready, logits)
        results: list[list[Outcome]] = []
        for one in chunks:
            slot, sampler = one.chunk.slot, self._samplers[one.chunk.slot]
            problem = problems[slot]
            if problem is not None:
                results.append([problem])
                continue
            outcomes = list(_outcomes(one.chunk, sampler, picks[slot]))
            tokens = [one.token for one in outcomes if isinstance(one, Sampled)]
            sampler.observe(tokens)
            if len(tokens) == len(outcomes):
                self.masks.observe(slot, tokens)
            results.append(outcomes)
        return results

    def _problem(self, slot: int) -> Deferred | Failed | None:
        """Why the slot cannot sample in this step."""
        late = self.masks.late(slot)
        if late is not None:
            return Deferred(slot, late)
        failure = self._failures.get(slot) or self.masks.failure(slot)
        return None if failure is None else Failed(slot, failure)

    def _on_the_device(
        self, chunks: Sequence[ChunkRows], logits: SampledLogits
    ) -> dict[int, Iterator[_native.Pick]]:
        """The picks of the slots whose chains the device runs, after all guesses."""
        rows: list[SampledRow] = []
        numbers: list[int] = []
        ends = {}
        for one in chunks:
            sampler = self._samplers[one.chunk.slot]
            if isinstance(sampler, _DeviceSampler):
                own = sampler.rows(one.chunk)
                rows += own
                numbers += one.sampled[: len(own)]
                ends[one.chunk.slot] = len(rows) - len(own), len(rows)
        picks = pick(logits.of(numbers), rows)
        return {slot: iter(picks[begin:end]) for slot, (begin, end) in ends.items()}

    def _on_the_host(
        self, chunks: Sequence[ChunkRows], logits: SampledLogits
    ) -> dict[int, Iterator[_native.Pick]]:
        """The picks of native samplers. They pick only what their caller takes."""
        found = []
        for one in chunks:
            sampler = self._samplers[one.chunk.slot]
            if isinstance(sampler, _HostSampler):
                found.append((one, sampler))
        rows = iter(logits.of(row for one, _ in found for row in one.sampled).cpu().numpy())
        return {
            one.chunk.slot: sampler.picks([*islice(rows, len(one.sampled))])
            for one, sampler in found
        }


def _outcomes(
    chunk: Chunk, sampler: _HostSampler | _DeviceSampler, picks: Iterator[_native.Pick]
) -> Iterator[Outcome]:
    """The outcomes of the picks up to the first that is not the guess at its place."""
    for right, (token, logprob, top) in enumerate(picks):
        failure = pick_failure(token, chunk, right)
        if failure is not None:
            yield Failed(chunk.slot, failure)
            return
        yield Sampled(chunk.slot, token, logprob, tuple(top), sampler.mu)
        if right == chunk.guesses or token != chunk.tokens[chunk.known + right]:
            return
