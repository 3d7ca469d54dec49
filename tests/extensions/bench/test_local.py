"""Loads on an engine in this process: what is sent, what is measured, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle.errors import ConfigError, EngineFailedError
from heddle.extensions.bench.local import PromptSource, check_fits, run_decode, run_prompts

if TYPE_CHECKING:
    from fake_executor import FakeExecutor
    from fixtures.benches import Start


def test_no_two_prompts_are_alike(start: Start) -> None:
    prompts = PromptSource(start()).take(50, 30)
    assert len({tuple(prompt) for prompt in prompts}) == 50
    assert all(len(prompt) == 30 for prompt in prompts)
    assert all(0 not in prompt for prompt in prompts), "the end token is no text"


def test_prompts_are_computed_up_to_one_token(start: Start, executor: FakeExecutor) -> None:
    engine = start()
    executor.before_step = lambda step: setattr(executor, "compute_seconds", step + 1.0)
    run = run_prompts(engine, PromptSource(engine).take(3, 40))
    assert [len(stream.arrivals) for stream in run.streams] == [1, 1, 1]
    assert {(stream.prompt_tokens, stream.tokens) for stream in run.streams} == {(40, 1)}
    assert all(stream.sent < stream.arrivals[0] for stream in run.streams)
    assert run.after.computed_prompt_tokens - run.before.computed_prompt_tokens == 120
    assert run.after.compute_seconds - run.before.compute_seconds == executor.steps


def test_decoding_is_measured_while_all_streams_run(start: Start, executor: FakeExecutor) -> None:
    engine = start(batch_tokens=32, slots=3)  # so that prompts are done one after the other
    run = run_decode(engine, PromptSource(engine).take(3, 60), 10)
    assert [len(stream.arrivals) for stream in run.streams] == [11, 11, 11]
    begun = max(stream.arrivals[0] for stream in run.streams)
    ended = min(stream.arrivals[-1] for stream in run.streams)
    assert begun < ended
    assert run.after.steps - run.before.steps == 10
    assert run.after.generated_tokens - run.before.generated_tokens >= 28
    assert engine.snapshot().running == 0


def test_overhead_is_what_steps_did_not_compute(start: Start, executor: FakeExecutor) -> None:
    engine = start()
    run = run_prompts(engine, PromptSource(engine).take(1, 40))
    assert run.overhead == 1  # the fake computes nothing


def test_a_failed_request_is_told(start: Start, executor: FakeExecutor) -> None:
    def fail(step: int) -> None:
        raise RuntimeError("no luck")

    engine = start()
    executor.before_step = fail
    for load in (
        lambda: run_prompts(engine, [[1, 2]]),
        lambda: run_decode(engine, [[1, 2]], 5),
    ):
        with pytest.raises(EngineFailedError, match="no luck"):
            load()


def test_a_context_that_ends_first_is_told(start: Start) -> None:
    engine = start(context=64)
    with pytest.raises(ConfigError, match="filled its context of 64 tokens"):
        run_decode(engine, PromptSource(engine).take(2, 40), 100)


@pytest.mark.parametrize(
    ("streams", "context", "told"),
    [
        (1, 1025, "--depths: 1025 tokens, generated ones included, do not fit the context"),
        (4, 1000, "--depths: 4 streams of 1000 tokens do not fit the KV cache of 2048"),
    ],
)
def test_what_does_not_fit_is_refused(start: Start, streams: int, context: int, told: str) -> None:
    engine = start(context=1024, slots=4)
    check_fits(engine, 4, 512)
    check_fits(engine, 2, 1024)
    with pytest.raises(ConfigError, match=told):
        check_fits(engine, streams, context)
