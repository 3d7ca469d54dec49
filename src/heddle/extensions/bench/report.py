"""Speed of an engine in this process under several loads, compared with floors.

Rates are medians. Reports show each rate as a share of its floor (:mod:`heddle.roofline`).
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from heddle.extensions.bench.figures import FORMULAS, decode_rates, itl, prompt_rate, tpot, ttft
from heddle.extensions.bench.local import PromptSource, check_fits, run_decode, run_prompts
from heddle.extensions.bench.machine import describe
from heddle.extensions.bench.other_work import OtherWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.engine import Engine
    from heddle.extensions.bench.figures import Spread
    from heddle.extensions.bench.local import Run
    from heddle.roofline import Floor, Limits, ModelWork


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads to measure.

    Attributes:
        streams: numbers of requests at once; each number gives a row.
        depths: tokens in each stream's context when decode is measured.
        prompt_tokens: tokens of each prompt when prefill is measured.
        new_tokens: tokens that each stream generates per round.
        rounds: rounds of each load. For decode, rounds are parts of one run.
    """

    streams: Sequence[int]
    depths: Sequence[int]
    prompt_tokens: int
    new_tokens: int
    rounds: int


@dataclass(frozen=True, slots=True)
class PromptRow:
    """Prompts of `tokens` tokens, `streams` at once.

    Attributes:
        rate: prompt tokens per second, the median of rounds.
        floor: the least time that the prompts can take.
        reached: the floor as a share of the measured time.
        multiply_rate: multiply-adds per second.
        of_peak: `multiply_rate` as a share of the peak.
        overhead: share of the steps' time without computation.
    """

    streams: int
    tokens: int
    rate: float
    ttft: Spread
    floor: Floor
    reached: float
    multiply_rate: float
    of_peak: float
    overhead: float

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON, with units in the names."""
        return {
            "streams": self.streams,
            "prompt_tokens": self.tokens,
            "tokens_per_second": self.rate,
            "ttft_seconds": asdict(self.ttft),
            "floor_seconds": self.floor.seconds,
            "bound_by": self.floor.bound_by,
            "share_of_floor": self.reached,
            "multiply_adds_per_second": self.multiply_rate,
            "share_of_multiply_peak": self.of_peak,
            "overhead_share": self.overhead,
        }


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """`streams` streams that decode at once, `depth` tokens in the context of each.

    Attributes:
        rate: tokens per second, the median of parts.
        read_rate: bytes of weights, keys and values read per second at that rate.
        of_memory: `read_rate` as a share of memory bandwidth; more than 1 if caches hold the
            weights.
        floor: the least time that a step can take.
        reached: the floor as a share of the measured time of a step.
        overhead: share of the steps' time without computation.
    """

    streams: int
    depth: int
    rate: float
    tpot: Spread
    itl: Spread
    read_rate: float
    of_memory: float
    floor: Floor
    reached: float
    overhead: float

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON, with units in the names."""
        return {
            "streams": self.streams,
            "depth": self.depth,
            "tokens_per_second": self.rate,
            "tpot_seconds": asdict(self.tpot),
            "itl_seconds": asdict(self.itl),
            "read_bytes_per_second": self.read_rate,
            "share_of_memory_bandwidth": self.of_memory,
            "floor_seconds": self.floor.seconds,
            "bound_by": self.floor.bound_by,
            "share_of_floor": self.reached,
            "overhead_share": self.overhead,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All results, with the model and the machine.

    Attributes:
        model: the model's id.
        quantisation: the tensor type of most of its weights.
        machine: see `heddle.extensions.bench.machine.describe`.
        other_work: share of the machine that other work took; None if unknown.
    """

    model: str
    quantisation: str
    machine: dict[str, Any]
    limits: Limits
    work: ModelWork
    loads: Loads
    prompts: tuple[PromptRow, ...]
    decodes: tuple[DecodeRow, ...]
    other_work: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "model": self.model,
            "quantisation": self.quantisation,
            "machine": self.machine,
            "other_work": self.other_work,
            "limits": asdict(self.limits),
            "work": asdict(self.work),
            "loads": asdict(self.loads),
            "formulas": FORMULAS,
            "prompt": [row.as_dict() for row in self.prompts],
            "decode": [row.as_dict() for row in self.decodes],
        }


def measure(engine: Engine, loads: Loads, note: Callable[[str], None]) -> Report:
    """Run all loads on an idle engine. `note` gets a line about each load.

    Limits are measured before and after the loads; the better values count.

    Raises:
        ConfigError: a load does not fit the engine.
        HeddleError: a request failed.
    """
    deepest = max(loads.depths) + loads.new_tokens * loads.rounds
    check_fits(engine, max(loads.streams), max(loads.prompt_tokens, deepest))
    executor, source = engine.model.executor, PromptSource(engine)
    run_prompts(engine, source.take(1, loads.prompt_tokens))  # reads every weight once
    others = OtherWork()
    note("measuring memory and arithmetic")
    limits = executor.measure_limits()
    prompts = []
    for count in loads.streams:
        note(f"prompts, {count} at once")
        lots = [source.take(count, loads.prompt_tokens) for _ in range(loads.rounds)]
        prompts.append([run_prompts(engine, lot) for lot in lots])
    decodes = []
    for depth in loads.depths:
        for count in loads.streams:
            note(f"decoding, {count} at once at depth {depth}")
            lot = source.take(count, max(1, depth))
            decodes.append((depth, run_decode(engine, lot, loads.new_tokens * loads.rounds)))
    note("measuring memory and arithmetic again")
    limits = limits.best(executor.measure_limits())
    return Report(
        model=engine.model.info.id,
        quantisation=engine.model.info.quantisation,
        machine=describe("heddle"),
        limits=limits,
        work=executor.work,
        loads=loads,
        prompts=tuple(prompt_row(engine, limits, runs) for runs in prompts),
        decodes=tuple(
            decode_row(engine, limits, run, depth, loads.rounds) for depth, run in decodes
        ),
        other_work=others.share(),
    )


def prompt_row(engine: Engine, limits: Limits, runs: Sequence[Run]) -> PromptRow:
    """The row of rounds with the same number and length of prompts."""
    streams, tokens = len(runs[0].streams), runs[0].streams[0].prompt_tokens
    rate = statistics.median(prompt_rate(run.streams) for run in runs)
    seconds = streams * tokens / rate
    work = engine.model.executor.work.prompts(streams, tokens, engine.config.batch_tokens)
    floor = work.floor(limits)
    return PromptRow(
        streams=streams,
        tokens=tokens,
        rate=rate,
        ttft=ttft([stream for run in runs for stream in run.streams]),
        floor=floor,
        reached=floor.seconds / seconds,
        multiply_rate=work.multiply_adds / seconds,
        of_peak=work.multiply_adds / seconds / limits.multiply_rate,
        overhead=statistics.median(run.overhead for run in runs),
    )


def decode_row(engine: Engine, limits: Limits, run: Run, depth: int, parts: int) -> DecodeRow:
    """The row of one run whose prompts had `depth` tokens.

    Raises:
        ValueError: the run is too short for `parts` parts.
    """
    streams = len(run.streams)
    rate = statistics.median(decode_rates(run.streams, parts))
    seconds = streams / rate
    halfway = depth + run.streams[0].tokens // 2
    work = engine.model.executor.work.decode_step(streams, halfway)
    floor = work.floor(limits)
    return DecodeRow(
        streams=streams,
        depth=depth,
        rate=rate,
        tpot=tpot(run.streams),
        itl=itl(run.streams),
        read_rate=work.bytes / seconds,
        of_memory=work.bytes / seconds / limits.memory_rate,
        floor=floor,
        reached=floor.seconds / seconds,
        overhead=run.overhead,
    )
