"""Profiles of native steps: the executor's seconds per kind of instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from heddle.errors import ConfigError
from heddle.extensions.bench.local import PromptSource, run_decode, run_prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.engine import Engine
    from heddle.extensions.bench.report import Loads


@runtime_checkable
class Profiled(Protocol):
    """An executor that can count the time of its instructions. Counters that are off cost
    nothing."""

    def set_profiling(self, on: bool) -> None:
        """Start or stop counting. Call it while no step runs."""

    def take_profile(self) -> dict[str, float]:
        """Seconds of the calling thread per kind of instruction, since the last call."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The name of a load, its steps, and seconds per kind of instruction."""

    load: str
    steps: int
    seconds: dict[str, float]

    def as_dict(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {"load": self.load, "steps": self.steps, "seconds": self.seconds}


def profile(engine: Engine, loads: Loads, note: Callable[[str], None]) -> tuple[Profile, ...]:
    """Profiles of prefill and decode for each number of streams, on an idle engine.

    Decode starts at depth 0, so that its counters contain no prefill.

    Raises:
        ConfigError: the executor has no counters, or a load does not fit the engine.
    """
    executor, source = engine.model.executor, PromptSource(engine)
    if not isinstance(executor, Profiled):
        raise ConfigError(
            "--profile: the executor of this device has no counters; use --device cpu"
        )

    def counted(
        load: str, run: Callable[[Sequence[Sequence[int]]], object], length: int
    ) -> Profile:
        prompts = source.take(streams, length)
        executor.take_profile()
        before = engine.snapshot().steps
        run(prompts)
        return Profile(load, engine.snapshot().steps - before, executor.take_profile())

    run_prompts(engine, source.take(1, loads.prompt_tokens))  # reads every weight once
    found = []
    executor.set_profiling(True)
    try:
        for streams in loads.streams:
            note(f"counting with {streams} at once")
            tokens = loads.prompt_tokens
            found.append(
                counted(f"prompt x{streams}", lambda lot: run_prompts(engine, lot), tokens)
            )
            decode = lambda lot: run_decode(engine, lot, loads.new_tokens)  # noqa: E731
            found.append(counted(f"decode x{streams}", decode, 1))
    finally:
        executor.set_profiling(False)
    return tuple(found)
