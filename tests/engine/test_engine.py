"""Requests through the engine: outputs, refusals, cancelling, closing, snapshots."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import END, VOCABULARY, FakeExecutor, solo_output
from fake_loads import until
from fake_model import PIECES, FakeTokenizer, fake_model, text_of
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.engine.observation.telemetry import Observer, SlotSnapshot
from heddle.engine.streaming.blocking import Collector
from heddle.errors import (
    ContextLengthError,
    EngineClosedError,
    EngineFailedError,
    InvalidRequestError,
    OverloadedError,
)
from heddle.outputs import Delta, FinishReason, Usage
from heddle.sampling_params import SamplingParams
from heddle.scheduler.sequence import SlotState

if TYPE_CHECKING:
    from heddle.engine.requests.request import Request
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan, StepResult


def params(seed: int = 1, **fields: Any) -> SamplingParams:
    return SamplingParams(seed=seed, **fields)


def expected(prompt: str, chosen: SamplingParams) -> list[int]:
    return solo_output(FakeTokenizer().encode(prompt), chosen, 512)


def test_prompts_advance_by_the_least_beside_preferred_streams(
    start, executor: FakeExecutor
) -> None:
    engine = start(batch_tokens=16, prefer_decode=True)
    stream, prompt = params(max_tokens=4, ignore_eos=True), params(max_tokens=1)
    engine.submit_many([([1], stream, lambda _: None), ([2] * 60, prompt, lambda _: None)])
    engine.close(drain=True)
    counts = [{slot: tokens for slot, _, tokens in plan} for plan in executor.plans]
    beside = [{0: 1, 1: 4}] * 3
    assert counts == [{0: 1, 1: 15}, *beside, {1: 16}, {1: 16}, {1: 1}]


# --- outputs -------------------------------------------------------------------------------------


def test_complete_returns_text_tokens_reason_and_usage(engine: Engine) -> None:
    chosen = params(max_tokens=6, ignore_eos=True)
    output = engine.complete("hello", chosen)
    tokens = expected("hello", chosen)
    assert [token.token for token in output.tokens] == tokens
    assert output.text == text_of(tokens)
    assert output.finish is FinishReason.LENGTH
    assert output.usage == Usage(5, 6)


def test_an_end_token_is_counted_and_has_no_text(engine: Engine, monkeypatch) -> None:
    pieces = dict(enumerate(PIECES)) | {END: b"<end>"}
    monkeypatch.setattr(engine.model.tokenizer, "token_bytes", pieces.__getitem__)
    output = engine.complete("hello", params())
    tokens = expected("hello", params())
    assert tokens[-1] == END
    assert output.finish is FinishReason.STOP
    assert output.usage.completion_tokens == len(tokens) == len(output.tokens)
    assert output.text == text_of(tokens[:-1])


def test_a_stop_string_ends_the_request_and_frees_its_slot(engine: Engine) -> None:
    whole = text_of(expected("hello", params(max_tokens=40, ignore_eos=True)))
    stop = whole[10:12]
    output = engine.complete("hello", params(max_tokens=40, ignore_eos=True, stop=(stop,)))
    assert output.text == whole[: whole.index(stop)]
    assert output.finish is FinishReason.STOP
    assert output.usage.completion_tokens < 40
    assert engine.snapshot().running == 0


def test_a_stop_string_that_the_last_token_completes_gives_reason_stop(engine: Engine) -> None:
    whole = text_of(expected("abc", params(max_tokens=20, ignore_eos=True)))
    last = whole[-1]
    most = whole.index(last) + 1  # every token so far is one character
    output = engine.complete("abc", params(max_tokens=most, ignore_eos=True, stop=(last,)))
    assert (output.finish, output.text) == (FinishReason.STOP, whole[: most - 1])


def test_a_stop_token_ends_the_request_and_is_not_shown(engine: Engine) -> None:
    free = params(max_tokens=40, ignore_eos=True)
    tokens = expected("hello", free)
    last = tokens.index(tokens[10])
    output = engine.complete("hello", replace(free, stop_token_ids=(VOCABULARY - 1, tokens[10])))
    assert [token.token for token in output.tokens] == tokens[: last + 1]
    assert (output.text, output.finish) == (text_of(tokens[:last]), FinishReason.STOP)
    assert output.stop is None


def test_a_stop_token_outside_the_vocabulary_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="stop_token_ids holds token id 32") as raised:
        engine.complete("hello", SamplingParams(stop_token_ids=(32,)))
    assert raised.value.param == "stop_token_ids"


def test_a_stop_string_is_found_while_the_next_step_computes(start, executor: FakeExecutor) -> None:
    engine = start(slots=1, queue=0)
    text = engine.complete("hello", params(max_tokens=6, ignore_eos=True)).text
    deltas: SimpleQueue[Delta] = SimpleQueue()

    def sink(delta: Delta) -> None:
        if delta.finish is not None:
            executor.gate.clear()  # hold the step that still carries the request
        deltas.put(delta)

    engine.submit("hello", params(stop=(text[2],), ignore_eos=True), sink)
    while (last := deltas.get(timeout=60)).finish is None:
        pass
    assert last.finish is FinishReason.STOP
    collector = Collector()
    engine.submit("world", params(max_tokens=2, ignore_eos=True), collector)  # not refused
    executor.gate.set()
    assert collector.wait().usage.completion_tokens == 2
    assert deltas.empty()
    assert engine.snapshot().pages_used == 0


def test_a_missing_seed_is_drawn(engine: Engine) -> None:
    free = SamplingParams(max_tokens=30, ignore_eos=True)
    assert len({engine.complete("hello", free).text for _ in range(4)}) > 1


def test_token_ids_and_text_give_the_same_prompt(engine: Engine) -> None:
    ids = FakeTokenizer().encode("hello")
    assert engine.complete(ids, params(max_tokens=9)) == engine.complete(
        "hello", params(max_tokens=9)
    )


def test_an_empty_prompt_begins_with_the_bos_token(start) -> None:
    output = start(bos_id=3).complete("", params(max_tokens=4))
    assert [token.token for token in output.tokens] == solo_output([3], params(max_tokens=4), 512)
    assert output.usage.prompt_tokens == 1


def test_many_threads_get_the_outputs_of_requests_that_run_alone(start) -> None:
    executor = FakeExecutor(pages=6)
    engine = start(executor=executor, slots=4, queue=60, batch_tokens=16)
    prompts = [("hello world " * (1 + i % 4)).strip() for i in range(24)]
    chosen = [params(seed=i, max_tokens=20 + i, ignore_eos=i % 3 > 0) for i in range(24)]

    def submit(prompt: str, one: SamplingParams) -> Collector:
        collector = Collector()
        engine.submit(prompt, one, collector)
        return collector

    executor.gate.clear()  # held until all are queued: fast steps would finish the first ones
    with ThreadPoolExecutor(24) as pool:
        collectors = list(pool.map(submit, prompts, chosen))
    executor.gate.set()
    outputs = [collector.wait() for collector in collectors]
    for prompt, one, output in zip(prompts, chosen, outputs, strict=True):
        tokens = solo_output(FakeTokenizer().encode(prompt), one, 6 * 32)
        assert [token.token for token in output.tokens] == tokens
    assert engine.snapshot().preemptions > 0
    assert engine.snapshot().pages_used == 0


def test_each_token_has_a_delta_and_the_last_has_the_finish_reason(engine: Engine) -> None:
    deltas = list(engine.stream("hello", params(max_tokens=5, ignore_eos=True)))
    assert [len(delta.tokens) for delta in deltas] == [1] * 5
    assert [delta.finish for delta in deltas] == [None] * 4 + [FinishReason.LENGTH]
    assert [delta.usage for delta in deltas] == [None] * 4 + [Usage(5, 5)]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "chosen", "param"),
    [
        ([1, VOCABULARY], params(), "prompt"),
        ([-1], params(), "prompt"),
        ([1.5], params(), "prompt"),
        ([], params(), "prompt"),
        ("", params(), "prompt"),
        ("a", params(logit_bias={VOCABULARY: 1.0}), "logit_bias"),
    ],
)
def test_an_invalid_request_is_refused(
    engine: Engine, prompt: Any, chosen: SamplingParams, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        engine.submit(prompt, chosen, SimpleQueue().put)
    assert error.value.param == param


def test_a_prompt_beyond_the_context_is_refused(start) -> None:
    with pytest.raises(ContextLengthError):
        start(context=8).complete("a" * 8, params())


def test_overload_refuses_at_once_and_running_requests_continue(
    start, executor: FakeExecutor
) -> None:
    engine = start(slots=1, queue=1)
    executor.gate.clear()
    collectors = [Collector() for _ in range(2)]
    for collector in collectors:
        engine.submit("hello", params(max_tokens=3), collector)
    with pytest.raises(OverloadedError) as error:
        engine.complete("hello", params())
    assert error.value.retry_after is not None
    executor.gate.set()
    assert len({collector.wait().text for collector in collectors}) == 1
    engine.complete("hello", params(max_tokens=1))


def test_several_requests_are_accepted_all_or_none(start, executor: FakeExecutor) -> None:
    engine = start(slots=1, queue=2)
    executor.gate.clear()
    engine.submit("hello", params(), Collector())
    lot = [("hello", params(seed=i, max_tokens=2), Collector()) for i in range(3)]
    with pytest.raises(OverloadedError):
        engine.submit_many(lot)
    with pytest.raises(InvalidRequestError):
        engine.submit_many([*lot[:1], ([99], params(), Collector())])
    assert engine.snapshot().queue_depth + engine.snapshot().running == 1
    assert len(engine.submit_many(lot[:2])) == 2


# --- cancelling ----------------------------------------------------------------------------------


def test_cancel_during_a_step_drains_the_slot_and_ends_once(start, executor: FakeExecutor) -> None:
    engine = start(slots=1)
    executor.gate.clear()
    deltas: SimpleQueue[Delta] = SimpleQueue()
    ticket = engine.submit("hello", params(), deltas.put)
    assert executor.entered.wait(60)
    ticket.cancel()
    ticket.cancel()
    assert engine.snapshot().slots[0].state is SlotState.DRAINING
    executor.gate.set()
    last = deltas.get(timeout=60)
    assert (last.finish, last.tokens, last.usage) == (FinishReason.CANCELLED, (), Usage(5, 0))
    engine.complete("hello", params(max_tokens=1))
    assert deltas.empty()
    assert executor.steps == 2  # the slot was free in the very next step


def test_a_cancelled_request_gets_the_text_that_was_held_back(
    engine: Engine, executor: FakeExecutor
) -> None:
    text = engine.complete("hello", params(max_tokens=40, ignore_eos=True)).text
    deltas: SimpleQueue[Delta] = SimpleQueue()

    def sink(delta: Delta) -> None:
        deltas.put(delta)
        if deltas.qsize() == 3:
            ticket.cancel()

    executor.gate.clear()  # so that the sink knows its ticket
    ticket = engine.submit("hello", params(stop=(text[:30] + "!",), ignore_eos=True), sink)
    executor.gate.set()
    read = [deltas.get(timeout=60)]
    while read[-1].finish is None:
        read.append(deltas.get(timeout=60))
    assert [delta.text for delta in read[:-1]] == [""] * (len(read) - 1)
    tokens = [token.token for delta in read for token in delta.tokens]
    assert read[-1].finish is FinishReason.CANCELLED
    assert read[-1].text == text_of(tokens) == text[: len(tokens)]


def test_a_cancel_after_the_last_token_was_computed_has_no_effect(
    engine: Engine, executor: FakeExecutor
) -> None:
    text = engine.complete("hello", params(max_tokens=6, ignore_eos=True)).text
    scheduler = engine.thread._loop.scheduler
    update, collector = scheduler.update, Collector()

    def cancel_after(result: Any, seconds: float) -> Any:
        events = update(result, seconds)
        ticket.cancel()  # before the delivery of the token, which would find the stop string
        return events

    scheduler.update = cancel_after  # type: ignore[method-assign, assignment]
    executor.gate.clear()
    ticket = engine.submit("hello", params(stop=(text[0],), ignore_eos=True), collector)
    executor.gate.set()
    assert collector.wait().finish is FinishReason.STOP
    assert engine.complete("world", params(max_tokens=2)).usage
    assert engine.snapshot().finished[FinishReason.CANCELLED] == 0


def test_cancel_ends_a_queued_request(start, executor: FakeExecutor) -> None:
    engine = start(slots=1)
    executor.gate.clear()
    first, second = Collector(), Collector()
    engine.submit("hello", params(max_tokens=2), first)
    ticket = engine.submit("world", params(), second)
    assert executor.entered.wait(60)
    ticket.cancel()
    executor.gate.set()
    assert second.wait().finish is FinishReason.CANCELLED
    assert first.wait().finish is FinishReason.LENGTH


def test_cancel_after_the_end_changes_nothing(engine: Engine) -> None:
    collector = Collector()
    ticket = engine.submit("hello", params(max_tokens=2), collector)
    output = collector.wait()
    ticket.cancel()
    assert collector.wait() == output
    assert engine.complete("hello", params(max_tokens=2)) == output
    assert engine.snapshot().finished[FinishReason.CANCELLED] == 0


def test_closing_or_dropping_a_stream_cancels_its_request(
    engine: Engine, executor: FakeExecutor
) -> None:
    # Each stream waits with its second token until it is closed or dropped.
    executor.before_step = lambda step: executor.gate.clear() if step in (0, 2) else None
    stream = engine.stream("hello", params(ignore_eos=True))
    next(stream)
    stream.close()
    executor.gate.set()
    assert list(stream) == []
    for _ in engine.stream("hello", params(ignore_eos=True)):
        break
    del stream
    executor.gate.set()
    engine.close(drain=True)
    assert engine.snapshot().finished[FinishReason.CANCELLED] == 2


def test_a_sink_can_submit_and_cancel(engine: Engine) -> None:
    second = Collector()
    first: SimpleQueue[Delta] = SimpleQueue()

    def sink(delta: Delta) -> None:
        if delta.finish is None and first.empty():
            engine.submit("world", params(max_tokens=2), second)
            ticket.cancel()
        first.put(delta)

    ready = threading.Event()
    ticket = engine.submit("hello", params(), lambda delta: (ready.wait(60), sink(delta))[1])
    ready.set()
    assert second.wait().finish is FinishReason.LENGTH
    while (delta := first.get(timeout=60)).finish is None:
        pass
    assert delta.finish is FinishReason.CANCELLED


# --- closing -------------------------------------------------------------------------------------


def test_close_ends_running_and_queued_requests(start, executor: FakeExecutor) -> None:
    engine = start(slots=1)
    executor.gate.clear()
    collectors = [Collector(), Collector()]
    for collector in collectors:
        engine.submit("hello", params(ignore_eos=True), collector)
    assert executor.entered.wait(60)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine.closed:
        pass
    executor.gate.set()
    for collector in collectors:
        with pytest.raises(EngineClosedError):
            collector.wait()
    closing.join()
    engine.close()
    assert executor.closed
    with pytest.raises(EngineClosedError):
        engine.complete("hello", params())


def test_close_with_drain_lets_requests_finish(start, executor: FakeExecutor) -> None:
    engine = start(slots=1)
    executor.gate.clear()
    collectors = [Collector(), Collector()]
    for collector in collectors:
        engine.submit("hello", params(max_tokens=5), collector)
    threading.Thread(target=executor.gate.set).start()
    engine.close(drain=True)
    assert len({collector.wait().text for collector in collectors}) == 1


def test_close_without_drain_ends_a_close_that_drains(start, executor: FakeExecutor) -> None:
    engine = start()
    executor.gate.clear()
    collector = Collector()
    engine.submit("hello", params(ignore_eos=True), collector)
    assert executor.entered.wait(60)
    draining = threading.Thread(target=engine.close, kwargs={"drain": True})
    draining.start()
    while not engine.closed:
        pass
    cutting = threading.Thread(target=engine.close)
    cutting.start()
    while engine.thread.gate.drain:
        pass
    executor.gate.set()
    with pytest.raises(EngineClosedError):
        collector.wait()
    draining.join()
    cutting.join()


def test_close_with_drain_does_not_prolong_a_close_without_drain(
    start, executor: FakeExecutor
) -> None:
    engine = start()
    executor.gate.clear()
    collector = Collector()

    def sink(delta: Delta) -> None:
        collector(delta)
        if delta.finish is None:
            engine.close()
            engine.close(drain=True)

    engine.submit("hello", params(ignore_eos=True), sink)
    executor.gate.set()
    with pytest.raises(EngineClosedError):
        collector.wait()
    assert executor.steps == 1  # the second step began before the first token was delivered


def test_close_ends_an_idle_engine(executor: FakeExecutor) -> None:
    with Engine(fake_model(executor), EngineConfig()) as engine:
        assert not engine.closed
    assert executor.closed


def test_a_sink_can_close_the_engine(engine: Engine, executor: FakeExecutor) -> None:
    collector = Collector()

    def sink(delta: Delta) -> None:
        collector(delta)
        engine.close()

    engine.submit("hello", params(ignore_eos=True), sink)
    with pytest.raises(EngineClosedError):
        collector.wait()


# --- watching ------------------------------------------------------------------------------------


def test_a_snapshot_shows_slots_queue_and_pages(start, executor: FakeExecutor) -> None:
    engine = start(slots=2, batch_tokens=40)
    steps = SimpleQueue()
    executor.before_step = lambda step: steps.put(engine.snapshot())
    collectors = [Collector() for _ in range(3)]
    prompts = ("a" * 30, "b" * 50, "c" * 3)
    requests = [(prompt, params(max_tokens=2, ignore_eos=True)) for prompt in prompts]
    engine.submit_many(
        (prompt, chosen, collector)
        for (prompt, chosen), collector in zip(requests, collectors, strict=True)
    )
    for collector in collectors:
        collector.wait()
    first, second = steps.get(), steps.get()
    assert first.slots == (
        SlotSnapshot(0, SlotState.PREFILLING, 0, 30, 0, 0, 2, step_tokens=30),
        SlotSnapshot(1, SlotState.PREFILLING, 1, 50, 0, 0, 2, step_tokens=10),
    )
    assert (first.running, first.queue_depth, first.pages_used, first.pages_total) == (2, 1, 2, 64)
    assert second.slots == (
        SlotSnapshot(0, SlotState.GENERATING, 0, 30, 30, 1, 2, step_tokens=1),
        SlotSnapshot(1, SlotState.PREFILLING, 1, 50, 10, 0, 2, step_tokens=16),
    )
    engine.close()
    last = engine.snapshot()
    assert last.slots == (SlotSnapshot(0), SlotSnapshot(1))
    assert (last.prompt_tokens, last.generated_tokens, last.pages_used) == (83, 6, 0)
    assert last.finished[FinishReason.LENGTH] == 3


class Recorder(Observer):
    """An observer that records every event."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_submit(self) -> None:
        self.calls.append(("submit",))

    def on_start(self, queue_seconds: float) -> None:
        assert queue_seconds > 0
        self.calls.append(("start",))

    def on_first_token(self, seconds: float) -> None:
        assert seconds > 0
        self.calls.append(("first",))

    def on_token(self, seconds: float) -> None:
        assert seconds > 0
        self.calls.append(("token",))

    def on_finish(self, request: Request) -> None:
        assert request.end is not None
        self.calls.append(("finish", *request.end))

    def on_step(
        self,
        number: int,
        plan: StepPlan,
        result: StepResult,
        seconds: float,
        sequences: list[Sequence | None],
    ) -> None:
        assert seconds > 0
        assert len(plan.chunks) == len(result.sampled)
        assert all(sequences[chunk.slot] is not None for chunk in plan.chunks)
        self.calls.append(("step", number))


def test_a_snapshot_counts_steps_and_their_time(start, executor: FakeExecutor) -> None:
    engine = start()
    before = engine.snapshot()
    assert (before.steps, before.step_seconds, before.compute_seconds) == (0, 0.0, 0.0)
    executor.compute_seconds = 1.5
    engine.complete("hello", params(max_tokens=5, ignore_eos=True))
    engine.close()
    after = engine.snapshot()
    assert after.steps == executor.steps == 5
    assert after.step_seconds > 0
    assert after.compute_seconds == 1.5


def test_observers_get_all_events_in_order(engine: Engine) -> None:
    recorder = Recorder()
    engine.thread.observe(recorder)
    engine.complete("hello", params(max_tokens=3, ignore_eos=True))
    finish = ("finish", FinishReason.LENGTH, Usage(5, 3))
    first = [("submit",), ("start",), ("step", 0), ("first",)]
    assert recorder.calls == [*first, ("step", 1), ("token",), ("step", 2), ("token",), finish]


class Steps(Observer):
    """The numbers of steps, and whether the next one had been submitted."""

    def __init__(self, executor: FakeExecutor) -> None:
        self._executor = executor
        self.seen: list[tuple[int, bool]] = []

    def on_step(self, number: int, *_: object) -> None:
        self.seen.append((number, bool(self._executor.submitted)))


def test_observers_hear_of_a_step_beside_the_next_one(start, executor: FakeExecutor) -> None:
    engine, steps = start(), Steps(executor)
    engine.thread.observe(steps)
    engine.complete("hello", params(max_tokens=3, ignore_eos=True))
    assert steps.seen == [(0, True), (1, True), (2, False)]


def test_observers_hear_of_the_step_before_a_failure(start, executor: FakeExecutor) -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise RuntimeError("the step burns")

    engine, steps = start(), Steps(executor)
    engine.thread.observe(steps)
    executor.before_submit = fail
    with pytest.raises(EngineFailedError, match="burns"):
        engine.complete("hello", params(max_tokens=5, ignore_eos=True))
    assert steps.seen == [(0, True), (1, False)]


def test_observers_hear_of_a_step_after_which_the_engine_waits(start, executor) -> None:
    engine, steps = start(), Steps(executor)
    engine.thread.observe(steps)
    driven = engine.create_sequence(params())
    driven.decode_prompt([5, 6, 7])
    until(lambda: bool(steps.seen))
    assert steps.seen == [(0, False)]


def test_observers_hear_of_each_request_that_comes_during_a_step(
    start, executor: FakeExecutor
) -> None:
    engine, recorder = start(), Recorder()
    engine.thread.observe(recorder)
    executor.gate.clear()
    collectors = [Collector() for _ in range(3)]
    for collector in collectors:
        engine.submit("hello", params(max_tokens=1), collector)
        assert executor.entered.wait(60)  # the others come during the first one's step
    executor.gate.set()
    for collector in collectors:
        collector.wait()
    engine.close()
    assert recorder.calls.count(("submit",)) == 3


def test_a_failing_observer_is_logged_and_stops_nothing(engine: Engine, caplog) -> None:
    engine.thread.observe(object())  # type: ignore[arg-type]
    recorder = Recorder()
    engine.thread.observe(recorder)
    assert engine.complete("hello", params(max_tokens=1)).usage.completion_tokens == 1
    assert len(recorder.calls) == 5
    assert "an observer failed in on_finish" in caplog.text


def test_usage_has_the_times_of_a_request(executor: FakeExecutor, engine: Engine) -> None:
    executor.before_step = lambda _: time.sleep(0.01)
    began = time.perf_counter()
    usage = engine.complete("hello", params(max_tokens=3)).usage
    whole = usage.queue_seconds + usage.prompt_seconds + usage.completion_seconds
    assert 0 < usage.queue_seconds < whole <= time.perf_counter() - began
    assert usage.prompt_seconds >= 0.01
    assert usage.completion_seconds >= 0.02
    assert engine.complete("hello", params(max_tokens=1)).usage.completion_seconds == 0


def test_preemption_does_not_restart_the_times(start) -> None:
    """The requests lose their pages after their first token and are scheduled twice."""
    engine = start(executor=FakeExecutor(pages=6), slots=4, batch_tokens=16)
    collectors = [Collector() for _ in range(4)]
    engine.submit_many(
        [([8, 5, n], params(max_tokens=60, ignore_eos=True), collectors[n]) for n in range(4)]
    )
    usages = [collector.wait().usage for collector in collectors]
    assert engine.snapshot().preemptions > 0
    assert all(usage.queue_seconds > 0 and usage.prompt_seconds > 0 for usage in usages)
    assert all(usage.completion_seconds > 0 for usage in usages)
