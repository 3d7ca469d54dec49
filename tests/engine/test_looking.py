"""Eyes work between steps: for whom, how long, and what happens when they fail."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import embedding, solo_output, solo_scores
from fake_loads import until
from fake_model import fake_model
from fake_sight import SeeingExecutor, SketchedEyes, Sketcher, lay, look_at, shown
from heddle.config import EngineConfig
from heddle.disk import page_file
from heddle.embedding import EmbeddingParams
from heddle.engine import Engine
from heddle.engine.health import HealthState
from heddle.engine.observation.activity import Phase
from heddle.engine.streaming.blocking import Collector
from heddle.errors import (
    BlindModelError,
    ContextLengthError,
    EngineClosedError,
    EngineFailedError,
    InvalidRequestError,
    StepAbandonedError,
)
from heddle.extensions.llamacpp.slot_files import restore_slot, save_slot
from heddle.extensions.sight.recorder import row_of
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams
from heddle.scheduler.sequence import SlotState
from heddle.state import PictureKeys
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heddle.outputs import Delta
    from heddle.pictures import Laid, Look

PARAMS = SamplingParams(seed=1, max_tokens=6, ignore_eos=True)
ENDLESS = replace(PARAMS, max_tokens=400)


@pytest.fixture
def eyes() -> Sketcher:
    return Sketcher()


@pytest.fixture
def executor() -> SeeingExecutor:
    return SeeingExecutor()


@pytest.fixture
def start(executor: SeeingExecutor, eyes: Sketcher) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def starter(
        executor: SeeingExecutor = executor, path: Path = Path("fake.gguf"), **settings: Any
    ) -> Engine:
        model = replace(fake_model(executor, path=path), eyes=SketchedEyes(eyes))
        engine = Engine(model, EngineConfig(**{"speculation": "off"} | settings))
        executor.holders = engine.thread._loop.scheduler.slots
        engines.append(engine)
        return engine

    yield starter
    executor.gate.set()
    eyes.gate.set()
    for engine in engines:
        engine.close()


def prompt(number: int = 1, count: int = 8, *text: int) -> Laid:
    return lay([1, 2], look_at(number, count, seen=False), text or [3])


def expected(laid: Laid, params: SamplingParams = PARAMS) -> list[int]:
    return solo_output(shown(laid.tokens, laid.pictures), params, 512)


def tokens_of(collector: Collector) -> list[int]:
    return [token.token for token in collector.wait().tokens]


def submit(engine: Engine, laid: Laid | str, params: Any = PARAMS) -> Collector:
    collector = Collector()
    engine.submit(laid, params, collector)
    return collector


def test_answers_depend_on_pictures(start: Callable[..., Engine], eyes: Sketcher) -> None:
    engine = start()
    one, other = prompt(1), prompt(2)
    assert tokens_of(submit(engine, one)) == expected(one)
    assert tokens_of(submit(engine, other)) == expected(other)
    assert expected(one) != expected(other)
    assert eyes.made == [1, 2]


def test_requests_with_one_picture_look_once(start: Callable[..., Engine], eyes: Sketcher) -> None:
    engine = start()
    look = look_at(1, 8, seen=False)
    prompts = [lay([1], look, [number], look) for number in range(3)]
    eyes.gate.clear()
    collectors = [submit(engine, one) for one in prompts]
    eyes.gate.set()
    assert [tokens_of(one) for one in collectors] == list(map(expected, prompts))
    assert eyes.made == [1]


def test_choices_share_a_prompt(start: Callable[..., Engine], eyes: Sketcher) -> None:
    engine, laid = start(), prompt()
    collectors = [Collector() for _ in range(3)]
    params = [replace(PARAMS, seed=seed) for seed in range(3)]
    engine.submit_many([(laid, one, to) for one, to in zip(params, collectors, strict=True)])
    assert [tokens_of(one) for one in collectors] == [expected(laid, one) for one in params]
    assert eyes.made == [1]
    assert len(laid.tokens) == 11


def test_scores_and_embeddings_of_prompts_with_pictures(start: Callable[..., Engine]) -> None:
    engine, laid = start(), prompt()
    seen = shown(laid.tokens, laid.pictures)
    output = submit(engine, laid, replace(PARAMS, prompt_logprobs=2)).wait()
    assert output.prompt_logprobs == solo_scores(seen, 2)
    vector = submit(engine, laid, EmbeddingParams()).wait_embedding().vector
    assert vector == embedding(seen)


def test_streams_go_on_while_the_eyes_work(start: Callable[..., Engine], eyes: Sketcher) -> None:
    engine = start(max_gap_ms=100)
    deltas = engine.stream("hello", ENDLESS)
    said = [next(deltas), next(deltas), next(deltas)]
    pending: list[bool] = []
    delivery = engine.thread._loop.delivery
    eyes.before = lambda looks: pending.append(bool(looks) and delivery.pending)
    laid = lay(*(look_at(number, 4, seen=False) for number in range(5)), [3])
    answer = submit(engine, laid)
    assert tokens_of(answer) == expected(laid)
    assert len(eyes.turns) >= 5
    assert max(eyes.seconds[:5]) < 0.1, "no longer than half of a gap"
    assert not any(pending), "tokens do not wait for the eyes"
    assert [len(delta.tokens) for delta in said] == [1, 1, 1]
    deltas.close()


def test_prompts_and_eyes_share_the_gap(start: Callable[..., Engine], eyes: Sketcher) -> None:
    engine = start()
    shares: list[float] = []
    pace = engine.thread._loop._pace
    eyes.before = lambda looks: shares.append(pace.prompts)
    submit(engine, prompt()).wait()
    until(lambda: pace.prompts == 1.0)
    assert shares[0] == 0.5


def test_a_cancelled_request_is_forgotten(start: Callable[..., Engine], eyes: Sketcher) -> None:
    engine = start()
    deltas: list[Delta] = []
    eyes.gate.clear()
    laid = prompt()
    look = weakref.ref(laid.pictures.spans[0].look)
    ticket = engine.submit(laid, PARAMS, deltas.append)
    assert eyes.entered.wait(60)

    eyes.makes = False
    ticket.cancel()
    eyes.gate.set()
    until(lambda: bool(deltas) and deltas[-1].finish is not None)
    assert deltas[-1].finish is FinishReason.CANCELLED
    until(lambda: eyes.turns[-1] == [])
    del laid, ticket
    eyes.turns.clear()
    until(lambda: gc.collect() >= 0 and look() is None)


def test_rows_are_freed_with_their_requests(start: Callable[..., Engine], eyes: Sketcher) -> None:
    engine, laid = start(), prompt()
    look = weakref.ref(laid.pictures.spans[0].look)
    submit(engine, laid).wait()
    del laid
    until(lambda: bool(eyes.turns) and eyes.turns[-1] == [])
    eyes.turns.clear()
    until(lambda: gc.collect() >= 0 and look() is None)


@pytest.mark.parametrize("error", [EngineFailedError("they are tired"), ZeroDivisionError("odd")])
def test_failing_eyes_end_those_that_wait(
    start: Callable[..., Engine], eyes: Sketcher, executor: SeeingExecutor, error: Exception
) -> None:
    engine = start()
    stream = engine.stream("hello", ENDLESS)
    next(stream)
    seen = engine.stream(lay(look_at(9, 4), [3]), ENDLESS)
    next(seen)

    def fail(looks: Sequence[Look]) -> None:
        if looks:
            raise error

    eyes.before = fail
    with pytest.raises(EngineFailedError, match=str(error)):
        submit(engine, prompt()).wait()
    eyes.before = lambda looks: None
    next(stream)
    next(seen)
    laid = prompt(2)
    assert tokens_of(submit(engine, laid)) == expected(laid)
    assert engine.health.state is HealthState.OK
    stream.close()
    seen.close()


def test_what_waits_for_something_else_outlives_failing_eyes(
    start: Callable[..., Engine], eyes: Sketcher, executor: SeeingExecutor
) -> None:
    """A sequence whose pictures were seen may wait for a mask."""
    mask: Future[None] = Future()
    engine, laid = start(), lay(look_at(9, 4), [3])
    history = shown(laid.tokens, laid.pictures)
    executor.defers = lambda said: mask if list(said) == history and not mask.done() else None
    waiting = submit(engine, laid)
    until(lambda: any(one and one.awaited for one in engine.thread._loop.scheduler.slots))

    def fail(looks: Sequence[Look]) -> None:
        if looks:
            raise EngineFailedError("they are tired")

    eyes.before = fail
    with pytest.raises(EngineFailedError, match="tired"):
        submit(engine, prompt()).wait()
    mask.set_result(None)
    assert tokens_of(waiting) == expected(laid)


def test_a_closing_engine_does_not_wait_for_the_eyes(
    start: Callable[..., Engine], eyes: Sketcher
) -> None:
    engine = start()

    def end(looks: Sequence[Look]) -> None:
        if eyes.abandoned:
            raise StepAbandonedError("the eyes were abandoned")

    eyes.before = end
    eyes.gate.clear()
    answer = submit(engine, prompt())
    assert eyes.entered.wait(60)
    engine.close()  # opens the gate
    with pytest.raises(EngineClosedError):
        answer.wait()
    assert (eyes.abandoned, eyes.closed, eyes.made) == (True, True, [])


@pytest.mark.parametrize("lost", [False, True])
def test_eyes_that_hang_end_the_engine(
    start: Callable[..., Engine], eyes: Sketcher, lost: bool
) -> None:
    """The watchdog gives them up. Their requests go to the next engine, and count the failure."""
    engine, left = start(), list[Any]()
    engine.thread.leave_requests_to(lambda interrupted: not left.append(interrupted))

    def end(looks: Sequence[Look]) -> None:
        if looks and eyes.abandoned:
            raise StepAbandonedError("the eyes were abandoned")

    eyes.before = end
    eyes.gate.clear()
    answer = submit(engine, prompt())
    assert eyes.entered.wait(60)
    loop = engine.thread._loop
    beat = loop.heartbeat.now
    assert beat.phase is Phase.COMPUTING
    assert loop.give_up_step(beat, 60.0, lost=lost) is lost
    until(lambda: bool(left))
    failed_steps = [request.failed_steps for request in left[0].take(5)]
    left[0].give_up()
    if lost:
        eyes.abandon()
        until(lambda: eyes.closed)
        engine.thread._over.set_result(None)
    assert failed_steps == [1]
    with pytest.raises(EngineFailedError, match="no progress"):
        answer.wait()


def test_the_watchdog_knows_that_eyes_wait_for_a_turn(
    start: Callable[..., Engine], eyes: Sketcher
) -> None:
    engine = start()
    loop = engine.thread._loop
    phases: list[Phase] = []

    class Turn:
        is_wanted = False

        def take(self) -> None:
            phases.append(loop.heartbeat.now.phase)

        def take_now(self) -> bool:
            return True

        def give(self) -> None:
            pass

        def withdraw(self) -> None:
            pass

    loop.turn = Turn()  # type: ignore[assignment]
    submit(engine, prompt()).wait()
    assert phases == [Phase.TURN]


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a model, on a disk of any speed."""
    monkeypatch.setattr("heddle.disk.tier.PATIENCE", PATIENCE)
    monkeypatch.setattr("heddle.disk.tier._CLOSE_SECONDS", PATIENCE)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.mark.parametrize(("content", "cached"), [(b"one", 96), (b"other", 32)])
def test_the_disk_has_pages_of_pictures_by_their_content(
    start: Callable[..., Engine],
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    cached: int,
) -> None:
    """In the next process another picture may have the same key."""
    settings = {"path": weights, "prefix_cache_dir": str(weights.parent / "pages")}
    for seen, hit in ((b"one", 0), (content, cached)):
        keys = PictureKeys()
        assert [keys.key_of(one) for one in (b"before", seen)][1] == look_at(1, 70).key
        monkeypatch.setattr(page_file, "PICTURE_KEYS", keys)
        engine, laid = start(executor=SeeingExecutor(), **settings), lay([5] * 40, look_at(1, 70))
        output = submit(engine, laid).wait()
        assert [token.token for token in output.tokens] == expected(laid)
        assert output.usage.cached_tokens == hit
        engine.close()


def test_a_slot_file_has_what_comes_before_a_picture(
    start: Callable[..., Engine], weights: Path
) -> None:
    laid, file = lay([5] * 40, look_at(1, 70), [2]), weights.parent / "slot"
    engine = start(path=weights)
    submit(engine, laid).wait()
    assert save_slot(engine, 0, file)[0] == 40
    other = start(executor=SeeingExecutor(), path=weights)
    assert restore_slot(other, 0, file)[0] == 40
    output = submit(other, laid).wait()
    assert [token.token for token in output.tokens] == expected(laid)
    assert output.usage.cached_tokens == 40


def test_a_slot_says_that_it_waits_for_the_eyes_whose_time_counts(
    start: Callable[..., Engine], eyes: Sketcher
) -> None:
    """The eyes work as long as a step does: `step_began` says since when."""
    engine = start()
    loop = engine.thread._loop
    idle = loop.activity.step_began
    eyes.gate.clear()
    waiting = submit(engine, lay([5], look_at(1, 20, seen=False)))
    assert eyes.entered.wait(PATIENCE)
    assert engine.snapshot().slots[0].state is SlotState.WAITING_FOR_PICTURE
    began = loop.activity.step_began
    assert began is not None
    assert began != idle
    assert row_of(next(iter(loop.delivery.requests.values()))).state == "waiting_for_picture"
    eyes.gate.set()
    waiting.wait()


# --- refusals ------------------------------------------------------------------------------------


def test_a_blind_model_takes_no_pictures(start: Callable[..., Engine], eyes: Sketcher) -> None:
    engine = start()
    engine.model = replace(engine.model, eyes=None)
    with pytest.raises(BlindModelError, match="sees no pictures"):
        engine.submit(prompt(), PARAMS, Collector())


def test_a_prompt_that_is_too_long_is_not_looked_at(
    start: Callable[..., Engine], eyes: Sketcher
) -> None:
    engine = start()
    with pytest.raises(ContextLengthError):
        engine.submit(prompt(1, 520), PARAMS, Collector())
    whole = lay([1], look_at(1, 17, seen=False), whole=True)
    with pytest.raises(InvalidRequestError, match="batch_tokens"):
        start(batch_tokens=16).submit(whole, PARAMS, Collector())
    assert not eyes.turns


# --- the next engine -----------------------------------------------------------------------------


def test_requests_go_on_with_the_eyes_of_the_next_engine(
    start: Callable[..., Engine], executor: SeeingExecutor, eyes: Sketcher
) -> None:
    """One look has rows already, the other one is seen by the next engine."""
    first, left = start(), list[Any]()
    laid = lay([1], look_at(1, 8), [2], look_at(2, 8, seen=False), [3])
    eyes.gate.clear()
    answer = submit(first, laid)
    assert eyes.entered.wait(60)
    thread = threading.Thread(
        target=first.thread.leave, args=(lambda one: not left.append(one),)
    )  # fmt: skip
    thread.start()
    until(lambda: first.thread.gate.closed)

    def stop(looks: Sequence[Look]) -> None:
        raise StepAbandonedError("the old eyes see no more")

    eyes.before = stop
    eyes.gate.set()
    thread.join()
    eyes.before = lambda looks: None
    second = start()
    [interrupted] = left
    assert interrupted.fits(second.model)
    assert not interrupted.fits(replace(second.model, eyes=SketchedEyes(eyes, ("other",))))
    assert not interrupted.fits(replace(second.model, eyes=None))
    second.thread.go_on(interrupted, 3, lambda: 99, second.adapters)
    assert tokens_of(answer) == expected(laid)
    assert eyes.made == [2]
