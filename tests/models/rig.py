"""Scheduler, prefix cache and CPU executor without an engine, for tests of exactness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cache_integrity import check_cache
from configs import configured
from devices import load_on
from guessers import Costless, Oracle
from heddle.cache.cache import Cache
from heddle.disk.directory import PageDirectory
from heddle.disk.tier import DiskTier
from heddle.errors import StepMemoryError
from heddle.parameters import Speculation
from heddle.sampling_params import SamplingParams
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence
from heddle.scheduler.speculation import Speculator
from heddle.step import Sampled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from heddle.step import StepPlan, StepResult
    from heddle.weights.checkpoint import Checkpoint

CONTEXT = 1024
GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=2, ignore_eos=True)
TEXT = [(7 * i * i + 3 * i) % 31 + 1 for i in range(700)]

Bits = list[tuple[int, float, tuple[tuple[int, float], ...]]]


class Rig:
    """See the module. `settings` replace those of the engine; a device is one of `EXECUTORS`.

    With `outputs`, the outputs of the prompts that it will run, a drafter knows them, and lies now
    and then.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        disk: Path | None = None,
        outputs: list[Bits] | None = None,
        **settings: Any,
    ) -> None:
        device = settings.pop("device", "cpu")
        config = configured(**({"threads": 2, "context": CONTEXT} | settings))
        self.executor = load_on(device, checkpoint, config)
        self.tier = None
        if disk is not None:
            page_bytes = self.executor.memory.token_page_bytes
            directory = PageDirectory(disk, 1 << 30)
            self.tier = DiskTier(
                directory,
                self.executor,
                page_bytes,
                b"f" * 32,
                threaded=False,
                snapshot_bytes=self.executor.memory.snapshot_bytes,
            )
        self.cache = Cache(self.executor.memory, enabled=config.prefix_cache, disk=self.tier)
        self.speculator = None if outputs is None else _speculator(outputs)
        self.scheduler = Scheduler(
            config.slots,
            config.batch_tokens,
            config.queue,
            self.cache,
            CONTEXT,
            speculator=self.speculator,
        )
        self.count = 0
        self.again = 0  # tokens computed again after wrong guesses
        self.submitted = 0  # steps in flight
        self.steps_ahead = 0  # steps that were submitted before the last one was collected

    def run(
        self,
        prompts: list[list[int]],
        params: SamplingParams = GREEDY,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Bits]:
        """Run all prompts at once; return their results. `meanwhile` runs while steps compute."""
        first, self.count = self.count, self.count + len(prompts)
        sequences = [
            Sequence(first + i, replace(params, seed=i), list(prompt), len(prompt), frozenset())
            for i, prompt in enumerate(prompts)
        ]
        said: dict[int, Bits] = {sequence.id: [] for sequence in sequences}
        self.scheduler.add(*sequences)
        while self.scheduler.busy:
            plan = None if self.submitted else self.scheduler.schedule()
            if plan is not None and not plan.chunks:
                assert self.tier is not None
                assert self.tier.work(), "all wait, and for nothing"
                continue
            try:
                result = self.step(plan, meanwhile)
            except StepMemoryError:
                self.submitted = 0
                assert self.scheduler.shrink_steps(), "not even one token"
                continue
            self.submitted -= 1
            for event in self.scheduler.update(result):
                assert isinstance(event.outcome, Sampled)
                out = event.outcome
                said[event.sequence.id].append((out.token, out.logprob, out.top))
            self.again += sum(sequence.again for sequence in sequences)
            check_cache(self.cache)
        self.found = [sequence.cached_tokens for sequence in sequences]
        return list(said.values())

    def step(self, plan: StepPlan | None, meanwhile: Callable[[], None]) -> StepResult:
        """Submit the plan, and the next one if a step ahead is possible. Collect a result."""
        if plan is not None:
            self.submit(plan)
        ahead = self.scheduler.schedule_ahead() if self.executor.runs_ahead else None
        if ahead is not None:
            self.submit(ahead)
            self.steps_ahead += 1
        meanwhile()
        return self.executor.collect()

    def submit(self, plan: StepPlan) -> None:
        self.executor.submit(plan)
        self.submitted += 1

    def one_by_one(self, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[Bits]:
        """The same, one after the other. `found` is of the last."""
        return [self.run([prompt], params)[0] for prompt in prompts]

    def close(self) -> None:
        self.cache.close(keep=True)
        self.executor.close()


def _speculator(outputs: list[Bits]) -> Speculator:
    def oracle(sequence: Sequence) -> Oracle:
        tokens = [token for token, _, _ in outputs[sequence.id % len(outputs)]]
        return Oracle(tokens, lies=4)

    drafters = {"oracle": oracle}
    return Speculator(drafters, Costless(), Speculation.MOST, recurrent=True)  # type: ignore[arg-type]
