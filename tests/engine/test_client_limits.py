"""Limits of prompts, outputs, waits and clients."""

from __future__ import annotations

import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from heddle.config import EngineConfig
from heddle.engine.requests import admission
from heddle.engine.requests.admission import ClientLimits
from heddle.engine.streaming.blocking import Collector
from heddle.errors import (
    ClientLimitError,
    ConfigError,
    ContextLengthError,
    InvalidRequestError,
    OverloadedError,
    QueueTimeoutError,
)
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams
from heddle.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from fake_executor import FakeExecutor
    from heddle.engine import Engine
    from heddle.outputs import Delta


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(seed=1, ignore_eos=True, **fields)


def submit(engine: Engine, client: str | None, most: int, prompt: str = "hello") -> Collector:
    collector = Collector()
    engine.submit_many([(prompt, params(max_tokens=most), collector)], client=client)
    return collector


def sequence(client: str, prompt: int = 5) -> Sequence:
    tokens = [1] * prompt
    made = Sequence(0, params(), tokens, prompt, frozenset())
    made.client = client
    return made


def ask(admits: ClientLimits, client: str) -> None:
    """Begin a request of a client, and end it."""
    one = [sequence(client)]
    admits.check(one)
    admits.begin(one)
    admits.end(one[0])


def test_a_prompt_beyond_the_limit_of_the_settings_is_refused(start) -> None:
    engine = start(max_prompt_tokens=5)
    engine.complete("hello", params(max_tokens=1))
    with pytest.raises(
        ContextLengthError, match=r"6 tokens; .* at most 5 \(max_prompt_tokens\)"
    ) as error:
        engine.complete("hellos", params(max_tokens=1))
    assert (error.value.tokens, error.value.context) == (6, engine.context)
    driven = engine.create_sequence(SamplingParams())
    driven.decode_prompt([8] * 9)  # its prompt and output cannot be told apart


@pytest.mark.parametrize(("asked", "got"), [(3, 3), (9, 4), (None, 4)])
def test_outputs_are_cut_at_the_limit_of_the_settings(start, asked: int, got: int) -> None:
    engine = start(max_output_tokens=4)
    output = engine.complete("hello", params(max_tokens=asked))
    assert (len(output.tokens), output.finish) == (got, FinishReason.LENGTH)


def test_a_client_has_so_many_requests_at_once(start, executor: FakeExecutor) -> None:
    engine = start(client_requests=2)
    executor.gate.clear()
    first, second = submit(engine, "a", 3), submit(engine, "a", 4)
    with pytest.raises(ClientLimitError, match="2 requests and sends 1 more; 2 may run"):
        submit(engine, "a", 1)
    others = [submit(engine, client, 1) for client in ("b", None, None, None)]
    executor.gate.set()
    for collector in (first, second, *others):
        collector.wait()
    submit(engine, "a", 1).wait()


def test_a_refused_request_does_not_count(start) -> None:
    engine = start(client_requests=1, context=8)
    with pytest.raises(ContextLengthError):
        submit(engine, "a", 1, "hello hello")
    submit(engine, "a", 1).wait()


def test_a_client_uses_so_many_tokens_per_minute(start, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(admission, "monotonic", lambda: now[0])
    engine = start(client_tokens=12)
    submit(engine, "a", 10).wait()  # 15 tokens
    with pytest.raises(ClientLimitError, match="in 20 s") as error:
        submit(engine, "a", 1)
    assert error.value.retry_after == pytest.approx(20.0)
    submit(engine, "b", 1).wait()
    submit(engine, None, 100).wait()
    now[0] += 20.0
    submit(engine, "a", 1).wait()


@pytest.mark.parametrize(
    "limits",
    [{"client_requests": 2}, {"client_tokens": 60}, {"client_requests": 2, "client_tokens": 60}],
)
def test_clients_without_anything_to_remember_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    now = [100.0]
    monkeypatch.setattr(admission, "monotonic", lambda: now[0])
    admits = ClientLimits(EngineConfig(**limits))
    busy = sequence("busy")
    admits.begin([busy])
    for client in range(500):
        now[0] += 1.0  # each client needs 5 s to get its tokens back
        ask(admits, f"{client}")
        assert len(admits._clients) < 20
    assert admits._clients["busy"].requests == 1
    admits.end(busy)
    now[0] += 60.0
    ask(admits, "last")
    ask(admits, "last")
    assert "busy" not in admits._clients


def test_a_balance_is_dated_after_each_refill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client gets its tokens for the same seconds again and again."""
    now = [100.0]
    monkeypatch.setattr(admission, "monotonic", lambda: now[0])
    admits = ClientLimits(EngineConfig(client_tokens=60))
    admits.begin([sequence("a", prompt=90)])  # 30 too many
    now[0] += 20.0
    for _ in range(3):
        with pytest.raises(ClientLimitError, match="in 11 s"):
            admits.check([sequence("a")])
    now[0] += 11.0
    admits.check([sequence("a")])


def test_a_client_saves_the_tokens_of_one_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(admission, "monotonic", lambda: now[0])
    admits = ClientLimits(EngineConfig(client_tokens=60))
    admits.begin([sequence("a", prompt=5)])  # it does not end, so the client is not forgotten
    now[0] += 3600.0
    admits.begin([sequence("a", prompt=61)])
    with pytest.raises(ClientLimitError, match="in 2 s"):
        admits.check([sequence("a")])


def test_counts_of_choices_and_of_ends_are_exact() -> None:
    admits = ClientLimits(EngineConfig(client_requests=3))
    two = [sequence("a"), sequence("a")]
    admits.begin(two)
    admits.check([sequence("a")])
    with pytest.raises(ClientLimitError, match="2 requests and sends 2 more"):
        admits.check(two)
    admits.end(two[0])
    admits.check(two)


def test_a_request_that_waits_too_long_never_runs(
    start, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(slots=1, queue_timeout=30)
    executor.gate.clear()
    running: SimpleQueue[Delta] = SimpleQueue()
    engine.submit("hello", params(max_tokens=3), running.put)
    assert executor.entered.wait(60)
    late = Collector()
    engine.submit("world", params(max_tokens=3), late)
    ahead = time.perf_counter() + 31.0
    monkeypatch.setattr(time, "perf_counter", lambda: ahead)
    soon = submit(engine, None, 2)  # it waits only from now on
    executor.gate.set()
    with pytest.raises(QueueTimeoutError, match="waited 30 s"):
        late.wait()
    assert soon.wait().finish is FinishReason.LENGTH
    assert engine.snapshot().finished[FinishReason.LENGTH] == 2
    assert engine.snapshot().computed_prompt_tokens < 10, "the late request was computed"
    assert not engine.thread._loop.patience.waiting


def test_a_running_engine_gets_other_limits(start, executor: FakeExecutor) -> None:
    """They count what ran before, hold for what comes, and end nothing that runs or waits."""
    engine = start(slots=1, queue=3, queue_timeout=3600)
    executor.gate.clear()
    first = submit(engine, "a", 3)
    second = submit(engine, "a", 3)
    engine.change_limits(client_requests=2, queue=1, queue_timeout=0, min_priority=1)
    assert engine.config.queue == 1
    with pytest.raises(InvalidRequestError, match=r"at least 1 \(min_priority\), got 0"):
        submit(engine, "b", 1)
    engine.change_limits(min_priority=0)
    with pytest.raises(ClientLimitError, match="2 requests and sends 1 more; 2 may run"):
        submit(engine, "a", 1)
    submit(engine, "b", 1)  # a client without requests has further places
    with pytest.raises(OverloadedError, match="slots and queue hold 2"):
        submit(engine, "b", 1)
    executor.gate.set()
    assert [one.wait().finish for one in (first, second)] == [FinishReason.LENGTH] * 2
    submit(engine, "a", 1).wait()
    engine.change_limits(max_prompt_tokens=3)
    with pytest.raises(ContextLengthError, match="at most 3"):
        submit(engine, "a", 1)
    with pytest.raises(ConfigError, match="queue must be at least 0"):
        engine.change_limits(queue=-1)
    assert engine.config.queue == 1


def test_another_limit_of_tokens_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(admission, "monotonic", lambda: now[0])
    admits = ClientLimits(EngineConfig())
    admits.begin([sequence("a", prompt=500)])  # without a limit
    admits.change(EngineConfig(client_tokens=60))
    admits.check([sequence("a")])
    admits.begin([sequence("a", prompt=90)])
    with pytest.raises(ClientLimitError, match="in 31 s"):
        admits.check([sequence("a")])
    admits.change(EngineConfig(client_tokens=60, client_requests=9))
    with pytest.raises(ClientLimitError, match="in 31 s"):
        admits.check([sequence("a")])
