"""A failed step poisons the engine; failures of single requests stay alone. All callers wake."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from cache_integrity import check_cache
from fake_model import FakeTokenizer
from heddle.engine.health import ChunkSummary, HealthState
from heddle.engine.streaming.blocking import Collector
from heddle.errors import (
    EngineClosedError,
    EngineFailedError,
    InvalidRequestError,
    ModelPoisonedError,
    NonFiniteLogitsError,
    StepMemoryError,
)
from heddle.executor import LogitsSummary
from heddle.outputs import Delta, FinishReason
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fake_executor import FakeExecutor
    from heddle.engine import Engine
    from heddle.step import Binding


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(seed=1, **fields)


def failing_on(*steps: int):
    def before_step(step: int) -> None:
        if step in steps:
            raise RuntimeError(f"step {step} burns")

    return before_step


def test_a_device_that_fails_between_steps_poisons_the_model(
    engine: Engine, executor: FakeExecutor
) -> None:
    driven = engine.create_sequence(params())
    driven.decode_prompt([8, 5])  # it holds a slot
    executor.fail("it burns")
    engine.thread._thread.join(60)
    assert engine.health.state is HealthState.POISONED
    with pytest.raises(EngineFailedError, match="the device failed: it burns"):
        driven.sample_next()
    with pytest.raises(ModelPoisonedError, match="the device failed: it burns"):
        engine.complete("hello", params(max_tokens=1))


def test_a_forked_process_is_told_that_it_has_no_engine(engine: Engine, monkeypatch) -> None:
    parent = os.getpid()
    driven = engine.create_sequence(params())
    driven.decode_prompt([8, 5])
    with monkeypatch.context() as fork:
        fork.setattr("os.getpid", lambda: parent + 1)
        with engine.thread._lock:  # a fork may inherit the lock held by a thread that it lacks
            with pytest.raises(EngineClosedError, match="fork"):
                engine.complete("hello", params(max_tokens=2))
            with pytest.raises(EngineClosedError, match="fork"):
                driven.sample_next()
            with pytest.raises(EngineClosedError, match="fork"):
                engine.flush_prefix_cache()
            driven.trim(1)
            engine.close()
    assert engine.complete("hello", params(max_tokens=2)).usage.completion_tokens == 2


def test_a_failed_step_poisons_the_engine(start, executor: FakeExecutor, caplog) -> None:
    engine = start(slots=1)
    figures = LogitsSummary(64, 3, 2, 1, 0, minimum=-1.5, maximum=4.0, mean=0.5)
    executor.summarize = lambda: figures
    executor.before_step = failing_on(1)
    executor.gate.clear()
    carried, queued = Collector(), Collector()
    engine.submit("hello", params(ignore_eos=True), carried)
    engine.submit("world", params(max_tokens=4, ignore_eos=True), queued)
    executor.gate.set()
    with pytest.raises(EngineFailedError, match="step 1 burns") as failed:
        carried.wait()
    with pytest.raises(ModelPoisonedError, match=r"step 1 failed.*load it again") as refused:
        queued.wait()
    with pytest.raises(ModelPoisonedError, match="step 1 failed"):
        engine.complete("later", params())
    assert (failed.value.status, failed.value.code) == (500, "engine_failed")
    assert (refused.value.status, refused.value.code) == (503, "model_poisoned")
    assert executor.steps == 2
    health = engine.health
    assert health.state is HealthState.POISONED
    assert health.poison is not None
    assert health.poison.reason == "step 1 failed: step 1 burns"
    assert (health.poison.step, health.poison.logits) == (1, figures)
    assert health.poison.chunks == (ChunkSummary(0, 5, 1),)
    assert "request 0: 1 tokens from position 5" in caplog.text
    assert "logits: 64 values: 3 NaN, 2 inf, 1 -inf;" in caplog.text
    engine.close()
    assert executor.closed
    snapshot = engine.snapshot()
    assert snapshot.finished[FinishReason.ERROR] == 2
    assert (snapshot.running, snapshot.queue_depth, snapshot.pages_used) == (0, 0, 0)
    assert engine.health.state is HealthState.POISONED


def too_large_beyond(most: int, executor: FakeExecutor):
    def before_step(step: int) -> None:
        if sum(tokens for _, _, tokens in executor.plans[-1]) > most:
            raise StepMemoryError("no memory left for the step")

    return before_step


def test_a_step_that_is_too_large_starts_its_requests_again(start, executor, caplog) -> None:
    """Also requests in the middle of their output. Every one gets what it gets alone."""
    engine = start(slots=3, batch_tokens=64)
    prompts = ["hello", "a prompt that is much longer than one step holds", "world"]
    wanted = params(max_tokens=30, ignore_eos=True)
    expected = [engine.complete(prompt, wanted).text for prompt in prompts]
    engine.flush_prefix_cache()
    streams = [Collector() for _ in prompts]
    executor.before_step = too_large_beyond(7, executor)
    for prompt, stream in zip(prompts, streams, strict=True):
        engine.submit(prompt, wanted, stream)
    assert [stream.wait().text for stream in streams] == expected
    assert engine.health.state is HealthState.OK
    assert engine.snapshot().preemptions > 0
    assert "no memory left for the step; running requests start again, and later" in caplog.text


def test_a_step_of_one_token_that_is_too_large_poisons_the_engine(start, executor) -> None:
    engine = start()
    executor.before_step = too_large_beyond(0, executor)
    with pytest.raises(EngineFailedError, match="no memory left for the step"):
        engine.complete("hello", params())
    assert engine.health.state is HealthState.POISONED


@pytest.mark.parametrize("error", [RuntimeError("no device"), MemoryError("no memory")])
def test_a_refused_step_poisons_the_engine(engine, executor: FakeExecutor, error) -> None:
    def before_submit(step: int) -> None:
        raise error

    executor.before_submit = before_submit
    with pytest.raises(EngineFailedError, match=f"step 0 failed: {error}"):
        engine.complete("hello", params())
    with pytest.raises(ModelPoisonedError, match=f"step 0 failed: {error}"):
        engine.complete("hello", params())


def test_unreadable_logits_leave_the_rest_of_the_report(engine, executor: FakeExecutor) -> None:
    def summarize() -> LogitsSummary:
        raise ValueError("no such rows")

    executor.summarize, executor.before_step = summarize, failing_on(0)
    with pytest.raises(EngineFailedError, match="step 0 burns"):
        engine.complete("hello", params())
    poison = engine.health.poison
    assert (poison.step, poison.logits) == (0, None)


def test_driven_sequences_learn_that_the_model_is_poisoned(engine, executor: FakeExecutor) -> None:
    carried, paused = engine.create_sequence(params()), engine.create_sequence(params())
    for sequence in (carried, paused):
        sequence.decode_prompt([8, 5])
        sequence.sample_next()
    executor.before_step = failing_on(executor.steps)
    with pytest.raises(EngineFailedError, match="burns") as failed:
        carried.sample_next()
    assert not isinstance(failed.value, ModelPoisonedError)
    for sequence in (carried, paused, engine.create_sequence(params())):
        with pytest.raises(ModelPoisonedError):
            sequence.decode_prompt([3])
            sequence.sample_next()


def test_a_sampler_that_cannot_be_made_fails_only_its_request(
    start, executor: FakeExecutor
) -> None:
    engine = start(slots=2)
    short = params(max_tokens=5, ignore_eos=True)
    alone = engine.complete("hello", short)

    def before_bind(binding: Binding) -> None:
        if list(binding.prompt) == FakeTokenizer().encode("world"):
            raise ValueError("no such stage")

    executor.before_bind = before_bind
    broken, beside = Collector(), Collector()
    engine.submit_many([("world", short, broken), ("hello", short, beside)])
    with pytest.raises(EngineFailedError, match="no such stage"):
        broken.wait()
    assert beside.wait() == alone
    assert engine.health.state is HealthState.OK


def test_what_is_not_the_forward_pass_does_not_poison(
    engine, executor: FakeExecutor, monkeypatch
) -> None:
    class Broken:
        def __getattr__(self, name: str) -> object:
            raise ValueError("a broken observer")

    def encode(text: str, **_: object) -> list[int]:
        raise RuntimeError("a broken tokenizer")

    engine.thread.observe(Broken())
    with pytest.raises(InvalidRequestError):
        engine.complete([1] * 5000, params())
    with pytest.raises(InvalidRequestError):
        engine.complete([99], params())
    engine.stream("hello", params(ignore_eos=True)).close()
    with monkeypatch.context() as broken:
        broken.setattr(engine.model.tokenizer, "encode", encode)
        with pytest.raises(RuntimeError, match="a broken tokenizer"):
            engine.complete("hello", params())
    assert engine.complete("hello", params(max_tokens=2, ignore_eos=True)).text
    assert engine.health.state is HealthState.OK


def test_the_end_of_a_cancelled_text_that_fails_ends_only_its_request(
    start, executor: FakeExecutor, monkeypatch
) -> None:
    engine = start(slots=2)
    executor.before_step = lambda step: executor.gate.clear() if step == 2 else None
    cancelled, beside = Collector(), Collector()
    ticket = engine.submit("hello", params(ignore_eos=True), cancelled)
    engine.submit("world", params(max_tokens=9, ignore_eos=True), beside)
    while executor.steps < 3:
        pass

    def finish() -> str:
        raise ValueError("half a character")

    request = engine.thread._loop.delivery.requests[ticket.id]
    monkeypatch.setattr(request.detokenizer, "finish", finish)
    ticket.cancel()
    executor.gate.set()
    with pytest.raises(EngineFailedError, match="half a character"):
        cancelled.wait()
    assert beside.wait().usage.completion_tokens == 9


def test_a_request_that_gets_no_token_fails_alone(start, executor: FakeExecutor, caplog) -> None:
    engine = start(slots=3)
    many = params(max_tokens=40, ignore_eos=True)
    prompts = ["hello", "world"]
    alone = [engine.complete(prompt, many) for prompt in prompts]
    bad = FakeTokenizer().encode("poison")
    executor.poisonous = lambda history: list(history[:6]) == bad and len(history) == 8
    collectors = [Collector() for _ in range(3)]
    sinks = zip(["hello", "poison", "world"], collectors, strict=True)
    engine.submit_many([(prompt, many, sink) for prompt, sink in sinks])
    with pytest.raises(NonFiniteLogitsError, match="the logits are NaN"):
        collectors[1].wait()
    assert [collectors[0].wait(), collectors[2].wait()] == alone
    snapshot = engine.snapshot()
    assert snapshot.finished[FinishReason.ERROR] == 1
    assert (snapshot.running, snapshot.pages_used) == (0, 0)
    assert "the logits are NaN" in caplog.text


def test_failures_of_single_requests_do_not_poison_the_engine(
    engine, executor: FakeExecutor
) -> None:
    executor.poisonous = lambda history: True
    for _ in range(4):
        with pytest.raises(NonFiniteLogitsError):
            engine.complete("hello", params())
    executor.poisonous = lambda history: False
    assert engine.complete("hello", params(max_tokens=2, ignore_eos=True)).text
    assert engine.health.state is HealthState.OK


def test_a_stop_string_ends_its_sequence_under_the_lock(engine, monkeypatch) -> None:
    """Stop strings are found while the next step computes, beside threads that submit."""
    thread = engine.thread
    cancel, held = thread._loop.scheduler.cancel, []

    def watched(sequence_id: int) -> bool:
        held.append(thread._lock.locked())
        return cancel(sequence_id)

    text = engine.complete("hello", params(max_tokens=6, ignore_eos=True)).text
    monkeypatch.setattr(thread._loop.scheduler, "cancel", watched)
    output = engine.complete("hello", params(max_tokens=6, ignore_eos=True, stop=(text[1:3],)))
    assert output.finish is FinishReason.STOP
    assert held == [True]


def test_a_cancelled_request_does_not_also_fail(start, executor: FakeExecutor) -> None:
    engine = start()
    executor.before_step = failing_on(0)
    executor.gate.clear()
    collector = Collector()
    ticket = engine.submit("hello", params(), collector)
    assert executor.entered.wait(60)
    ticket.cancel()
    executor.gate.set()
    with pytest.raises(EngineFailedError):
        collector.wait()
    engine.close()
    assert engine.snapshot().finished[FinishReason.CANCELLED] == 0


def test_a_failing_sink_cancels_only_its_request(engine: Engine, caplog) -> None:
    fine = Collector()
    calls: list[Delta] = []

    def broken(delta: Delta) -> None:
        calls.append(delta)
        raise ValueError("the sink is full")

    engine.submit_many(
        [
            ("hello", params(ignore_eos=True), broken),
            ("hello", params(max_tokens=8, ignore_eos=True), fine),
        ]
    )
    assert fine.wait().usage.completion_tokens == 8
    assert len(calls) == 1
    assert engine.snapshot().finished[FinishReason.CANCELLED] == 1
    assert engine.snapshot().running == 0
    assert "the sink is full" in caplog.text


def test_tokens_that_cannot_be_decoded_fail_only_their_request(engine, monkeypatch) -> None:
    tokenizer = engine.model.tokenizer
    whole = tokenizer.token_bytes
    short = params(max_tokens=5, ignore_eos=True)
    alone = engine.complete("xyz", short)
    said = {token.token for token in alone.tokens}
    longer = engine.complete("ab", params(max_tokens=99, ignore_eos=True))
    bad = next(token.token for token in longer.tokens if token.token not in said)

    def token_bytes(token: int) -> bytes:
        if token == bad:
            raise IndexError("no such piece")
        return whole(token)

    monkeypatch.setattr(tokenizer, "token_bytes", token_bytes)
    broken, beside = Collector(), Collector()
    engine.submit_many([("ab", params(ignore_eos=True), broken), ("xyz", short, beside)])
    with pytest.raises(EngineFailedError, match="no such piece"):
        broken.wait()
    assert beside.wait() == alone


def test_a_bug_in_the_engine_thread_wakes_all_callers(
    start, executor: FakeExecutor, monkeypatch
) -> None:
    engine = start(slots=1)
    executor.gate.clear()
    collectors = [Collector(), Collector()]
    for collector in collectors:
        engine.submit("hello", params(), collector)

    def update(result: object, seconds: float) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(engine.thread._loop.scheduler, "update", update)
    executor.gate.set()
    with pytest.raises(EngineFailedError, match="a bug") as failed:
        collectors[0].wait()
    assert failed.value.status == 500
    with pytest.raises(ModelPoisonedError, match="a bug"):
        collectors[1].wait()
    with pytest.raises(ModelPoisonedError):
        engine.complete("hello", params())
    poison = engine.health.poison
    assert (poison.reason, poison.step) == ("the engine failed: a bug", None)
    engine.close()
    assert executor.closed


def test_all_waiting_threads_wake_when_the_engine_fails(start, executor: FakeExecutor) -> None:
    engine = start(slots=2, queue=8)
    executor.before_step = failing_on(*range(100))
    executor.gate.clear()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            engine.complete("hello", params())
        except EngineFailedError as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    while engine.snapshot().running + engine.snapshot().queue_depth < 10:
        pass
    executor.gate.set()
    for thread in threads:
        thread.join()
    assert len(errors) == 10


def test_a_clock_that_jumps_harms_no_request(start, executor: FakeExecutor, monkeypatch) -> None:
    engine = start(slots=2)
    many = params(max_tokens=20, ignore_eos=True)
    alone = [engine.complete(prompt, many) for prompt in ("hello", "world")]
    steps, clocks = executor.steps, {name: getattr(time, name) for name in ("perf_counter", "time")}
    offset = [0.0]

    def jump(step: int) -> None:
        offset[0] = {4: 86_400.0, 9: -86_400.0}.get(step - steps, offset[0])

    for name, clock in clocks.items():
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + offset[0])
    executor.before_step = jump
    collectors = [Collector(), Collector()]
    engine.submit_many([("hello", many, collectors[0]), ("world", many, collectors[1])])
    outputs = [collector.wait() for collector in collectors]
    assert [output.text for output in outputs] == [output.text for output in alone]
    engine.close()
    check_cache(engine.thread._loop.cache)
    assert engine.health.state is HealthState.CLOSED
