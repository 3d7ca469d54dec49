"""Scorers that follow the events over real sockets know exactly what is cached."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("zmq")

import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.kv_events.block_mirror import blocks_of
from extensions.kv_events.scorer import Scorer
from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.errors import ConfigError
from heddle.extensions.kv_events import publisher as publishing
from heddle.extensions.kv_events.blocks import Blocks
from heddle.extensions.kv_events.feed import Feed
from heddle.extensions.kv_events.publisher import Publisher
from heddle.extensions.kv_events.wire import Translator
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS, TokenArray
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fixtures.engines import Start

    Followed = tuple[Engine, Publisher, Scorer]

LOCAL = "tcp://127.0.0.1:*"


@pytest.fixture
def publish() -> Iterator[Callable[..., Publisher]]:
    made = []

    def start(endpoint: str = LOCAL, replay: str = LOCAL) -> Publisher:
        made.append(Publisher(endpoint, replay, "pod"))
        return made[-1]

    yield start
    for publisher in made:
        publisher.close()
        assert not publisher._thread.is_alive()


@pytest.fixture
def follow() -> Iterator[Callable[..., Scorer]]:
    made = []

    def start(publisher: Publisher, **options: Any) -> Scorer:
        made.append(Scorer(publisher, **options))
        return made[-1]

    yield start
    for scorer in made:
        scorer.close()


@pytest.fixture
def followed(
    start: Start, publish: Callable[..., Publisher], follow: Callable[..., Scorer]
) -> Callable[[], Followed]:
    """Starts an engine with a publisher, and a scorer that follows it."""

    def starter() -> Followed:
        engine, publisher = start(), publish()
        publisher.add("m", engine)
        return engine, publisher, follow(publisher)

    return starter


def cached(engine: Engine) -> list[tuple[str | None, tuple[int, ...]]]:
    """Salt and tokens of all blocks in the tree."""
    blocks = engine.thread.call(lambda loop: blocks_of(loop.cache.prefixes.tree))
    return sorted(blocks.values(), key=repr)


def known(scorer: Scorer, model: str = "m") -> list[tuple[str | None, tuple[int, ...]]]:
    blocks = (block for (name, _), block in scorer.blocks.items() if name == model)
    return sorted(blocks, key=repr)


def run(engine: Engine, prompt: list[int], salt: str | None = None, most: int = 2) -> None:
    engine.complete(prompt, SamplingParams(max_tokens=most, ignore_eos=True, cache_salt=salt))


def page(*letters: int) -> list[int]:
    return [letter for letter in letters for _ in range(PAGE_TOKENS)]


# --- random traffic ------------------------------------------------------------------------------

TRAFFIC = st.lists(
    st.one_of(
        st.tuples(
            st.lists(st.integers(1, 3), min_size=1, max_size=5),
            st.integers(0, 40),
            st.sampled_from([None, None, "a", "\ud800"]),
            st.integers(1, 70),
        ),
        st.sampled_from(["flush", "off", "together"]),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def small() -> Iterator[tuple[Engine, Publisher, Scorer]]:
    """An engine with a small cache, and a scorer that follows it through all examples."""
    model = fake_model(FakeExecutor(pages=20), context=400)
    publisher = Publisher(LOCAL, LOCAL, "pod")
    with Engine(model, EngineConfig(speculation="off", slots=3, queue=32)) as engine:
        scorer = Scorer(publisher)
        publisher.add("m", engine)
        yield engine, publisher, scorer
        scorer.close()
    publisher.close()


@given(TRAFFIC)
@settings(max_examples=60, deadline=None)
def test_a_scorer_knows_what_is_cached(
    small: tuple[Engine, Publisher, Scorer], traffic: list[Any]
) -> None:
    engine, _, scorer = small
    for one in traffic:
        if one == "flush":
            engine.flush_prefix_cache()
        elif one == "off":
            engine.set_prefix_cache(False)
            run(engine, page(1, 2))
            engine.set_prefix_cache(True)
        elif one == "together":
            params = SamplingParams(max_tokens=40, ignore_eos=True)
            for stream in [engine.stream(page(1, letter), params) for letter in (1, 2, 3, 1)]:
                list(stream)
        else:
            letters, end, salt, most = one
            run(engine, [*page(*letters), *[9] * end], salt, most)
    expected = [("?" if salt == "\ud800" else salt, prefix) for salt, prefix in cached(engine)]
    scorer.until(lambda: known(scorer) == sorted(expected, key=repr))


# --- sequence and replays ------------------------------------------------------------------------


def test_a_scorer_that_comes_late_asks_for_all_batches(
    followed: Callable[[], Followed], follow: Callable[..., Scorer]
) -> None:
    engine, publisher, early = followed()
    run(engine, page(1, 2))
    early.until(lambda: known(early) == cached(engine))
    late = follow(publisher)
    assert late.ask(0) == early.last + 1
    assert late.blocks == early.blocks != {}
    assert late.ask(late.last + 1) == 0
    assert late.ask(2**40) == 0


def test_a_gap_in_the_sequence_is_filled(
    followed: Callable[[], Followed], follow: Callable[..., Scorer]
) -> None:
    engine, publisher, scorer = followed()
    until_live(engine, scorer)
    before = scorer.last
    for letter in (5, 6):
        run(engine, page(letter))
    follow(publisher).until(lambda: follower_is_at(publisher, before + 2))
    scorer.events.poll(PATIENCE * 1000)
    scorer.events.recv_multipart()  # lost
    scorer.until(lambda: known(scorer) == cached(engine), asks=False)
    assert scorer.gaps


def until_live(engine: Engine, scorer: Scorer) -> None:
    """Make events until the subscription has reached the publisher."""
    prompt = page(1)
    while not scorer.live:
        prompt = [*prompt, *page(len(prompt) // PAGE_TOKENS % 20)]
        assert len(prompt) < 450, "no event came"
        run(engine, prompt)
        if scorer.events.poll(100):
            scorer.take(scorer.events.recv_multipart())
    scorer.until(lambda: known(scorer) == cached(engine))


def follower_is_at(publisher: Publisher, sequence: int) -> bool:
    return publisher._sequence > sequence


def test_wrong_requests_for_batches_get_no_answer_and_harm_nothing(
    followed: Callable[[], Followed],
) -> None:
    engine, publisher, scorer = followed()
    asked = scorer._connect(zmq.DEALER, publisher.replay_address)
    for frames in ([b"x"], [b"", b"1234"], [b"", b"12345678", b""], [b"", bytes(1000)]):
        asked.send_multipart(frames)
    run(engine, page(1))
    scorer.until(lambda: known(scorer) == cached(engine))
    assert not asked.poll(0)
    asked.close()


def test_if_batches_are_no_longer_kept_the_publisher_starts_over(
    followed: Callable[[], Followed], follow: Callable[..., Scorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "KEPT_BATCHES", 2)
    monkeypatch.setattr(publishing, "RESTART_SECONDS", 0.0)
    engine, publisher, early = followed()
    until_live(engine, early)
    for letter in range(4, 9):
        run(engine, page(letter, 2))
    early.until(lambda: known(early) == cached(engine))
    late = follow(publisher)
    assert late.ask(0) == 0
    early.until(lambda: early.last < 2, asks=False)  # numbers begin again
    late.until(lambda: late.last >= 0)
    for scorer in (early, late):
        scorer.until(lambda: known(scorer) == cached(engine))  # noqa: B023 - called at once


def test_requests_for_lost_batches_start_over_at_most_once_in_a_while(
    start: Start,
    publish: Callable[..., Publisher],
    follow: Callable[..., Scorer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "KEPT_BATCHES", 1)
    engine, publisher = start(), publish()
    starts: list[int] = []
    start_over = publisher._start_over
    monkeypatch.setattr(
        publisher, "_start_over", lambda *given: (starts.append(1), start_over(*given))
    )
    publisher.add("m", engine)
    scorer = follow(publisher)
    for letter in range(1, 9):
        sent = publisher._sequence
        run(engine, page(letter, letter))
        scorer.until(lambda: publisher._sequence != sent, asks=False)  # noqa: B023 - called at once
    for _ in range(9):
        assert scorer.ask(0) <= 1
    assert len(starts) == 2  # for the new model, and for the first request


def test_kept_batches_are_limited_in_bytes(
    followed: Callable[[], Followed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "KEPT_BYTES", 1000)
    engine, publisher, scorer = followed()
    for letter in range(1, 12):
        run(engine, page(letter, letter))
        scorer.until(lambda: known(scorer) == cached(engine))
    assert publisher._kept_bytes == sum(len(batch) for *_, batch in publisher._kept) <= 1000
    assert publisher._kept


# --- slow subscribers, slow publisher ------------------------------------------------------------


def test_a_subscriber_that_reads_nothing_does_not_stop_the_engine(
    start: Start,
    publish: Callable[..., Publisher],
    follow: Callable[..., Scorer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "QUEUED_BATCHES", 1)
    engine, publisher = start(), publish()
    asleep, awake = follow(publisher), follow(publisher)
    publisher.add("m", engine)
    for round_ in range(30):
        run(engine, [*page(1 + round_ % 20, 2, 3, 4, round_ % 7), *page(8)])
    awake.until(lambda: known(awake) == cached(engine))
    asleep.until(lambda: known(asleep) == cached(engine))


def test_a_publisher_that_is_too_slow_starts_over(followed: Callable[[], Followed]) -> None:
    engine, publisher, scorer = followed()
    run(engine, page(1))
    scorer.until(lambda: known(scorer) == cached(engine))
    [feed] = publisher._feeds.values()
    cleared = scorer.cleared
    with feed._lock:
        feed._room = 1  # as if many blocks waited
    run(engine, page(1, 2, 3))
    scorer.until(lambda: known(scorer) == cached(engine) and scorer.cleared == cleared + 1)
    assert feed._room == feed._most
    run(engine, page(4, 4))
    scorer.until(lambda: known(scorer) == cached(engine))
    assert scorer.cleared == cleared + 1


def test_a_feed_holds_a_bounded_number_of_blocks(start: Start) -> None:
    engine = start()
    woken = threading.Event()
    feed = Feed("m", engine.thread, 64, woken.set)
    assert feed.is_lost
    feed.mend()
    assert not feed.is_lost
    engine.thread.call(lambda loop: None)
    for _ in range(2):
        for letter in range(1, 21):
            run(engine, page(letter, letter, letter))
    assert len(feed._waiting) > 0
    assert sum(1 for _ in feed._waiting) <= feed._most - feed._room <= feed._most
    before = feed._most - feed._room
    taken = feed.take(5)
    assert 5 <= before - (feed._most - feed._room) <= 8
    assert taken
    assert woken.is_set()


def test_of_two_mends_only_the_last_counts(start: Start, executor: FakeExecutor) -> None:
    engine = start()
    feed = Feed("m", engine.thread, 64, lambda: None)
    run(engine, page(1, 2))
    executor.gate.clear()
    executor.entered.clear()
    stream = engine.stream([3], SamplingParams(max_tokens=1))
    assert executor.entered.wait(PATIENCE)
    feed.mend()  # both wait until the step has ended
    feed.break_off()
    feed.mend()
    executor.gate.set()
    list(stream)
    engine.thread.call(lambda loop: None)
    assert sum(len(one.hashes) for one in feed._waiting) == 2


# --- several models, ends ------------------------------------------------------------------------


def test_blocks_of_two_models_have_different_hashes_and_an_unload_keeps_the_other_s(
    start: Start, publish: Callable[..., Publisher], follow: Callable[..., Scorer]
) -> None:
    publisher = publish()
    one, other = start(executor=FakeExecutor()), start(executor=FakeExecutor())
    publisher.add("one", one)
    publisher.add("other", other)
    scorer, only = follow(publisher), follow(publisher, topic="kv@pod@other")
    for engine in (one, other):
        run(engine, page(1, 2))
    scorer.until(lambda: known(scorer, "one") == known(scorer, "other") == cached(one) != [])
    assert len({hash_ for _, hash_ in scorer.blocks}) == 4
    one.close()
    publisher.remove("one", other)  # not that engine
    publisher.remove("other", one)
    publisher.remove("one", one)
    publisher.remove("one", one)
    scorer.until(lambda: known(scorer, "one") == [] != known(scorer, "other") == cached(other))
    run(other, page(3, 4))  # `only` may have subscribed after the first events
    assert only.events.poll(PATIENCE * 1000)
    assert only.events.recv_multipart()[0] == b"kv@pod@other"


def test_a_model_that_is_loaded_again_begins_without_blocks(
    start: Start, publish: Callable[..., Publisher], follow: Callable[..., Scorer]
) -> None:
    publisher = publish()
    first = start(executor=FakeExecutor())
    publisher.add("m", first)
    scorer = follow(publisher)
    run(first, page(1, 2))
    scorer.until(lambda: known(scorer) == cached(first))
    first.close()
    second = start(executor=FakeExecutor())
    publisher.add("m", second)
    publisher.remove("m", first)  # the registry may say so later
    run(second, page(3))
    scorer.until(lambda: known(scorer) == cached(second))


def test_the_feed_of_an_engine_that_has_ended_tells_nothing(
    start: Start, publish: Callable[..., Publisher], follow: Callable[..., Scorer]
) -> None:
    engine, publisher = start(), publish()
    engine.close()
    publisher.add("m", engine)
    scorer = follow(publisher)
    scorer.until(lambda: scorer.cleared == 1)
    assert not scorer.blocks


def test_a_model_with_an_at_sign_has_no_events(
    start: Start, publish: Callable[..., Publisher], caplog: pytest.LogCaptureFixture
) -> None:
    publisher = publish()
    publisher.add("a@b", start())
    assert "no events of 'a@b'" in caplog.text
    assert not publisher._feeds


def test_an_error_of_the_publisher_breaks_all_feeds_and_the_next_event_mends_them(
    followed: Callable[[], Followed],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, _, scorer = followed()
    run(engine, page(1))
    scorer.until(lambda: known(scorer) == cached(engine))
    failed = threading.Event()

    def fail(_events: Any) -> bytes:
        failed.set()
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(publishing, "packed", fail)
    run(engine, page(2))
    assert failed.wait(PATIENCE)
    run(engine, page(3))
    scorer.until(lambda: known(scorer) == cached(engine))
    assert "events of cached blocks were not sent" in caplog.text


def test_a_salt_is_an_extra_key_of_the_first_block() -> None:
    make, tokens = Translator("m"), TokenArray("i", page(1, 2))
    event = make.stored(Blocks((1, 2), None, tokens, "s\ud800"))
    assert event.extra_keys == [["s?"], None]
    assert make.stored(Blocks((1, 2), None, tokens, None)).extra_keys is None
    assert make.stored(Blocks((1, 2), 3, tokens, None)).extra_keys is None


# --- addresses -----------------------------------------------------------------------------------


def test_without_a_wildcard_it_connects(start: Start, publish: Callable[..., Publisher]) -> None:
    """As llm-d's central subscriber expects: it listens, and servers connect."""
    context = zmq.Context()
    events = context.socket(zmq.SUB)
    events.subscribe(b"kv@pod@")
    port = events.bind_to_random_port("tcp://127.0.0.1")
    engine, publisher = start(), publish(f"tcp://127.0.0.1:{port}", "")
    assert publisher.replay_address == ""
    publisher.add("m", engine)
    for letter in range(1, 12):
        run(engine, page(letter))
        if events.poll(200):
            break
    assert events.poll(PATIENCE * 1000)
    context.destroy(linger=0)


@pytest.mark.parametrize("replay", [False, True])
def test_an_address_that_is_taken_or_wrong_is_refused(
    publish: Callable[..., Publisher], replay: bool
) -> None:
    taken = publish().address
    for address in (taken, "nonsense", "tcp://*", "tcp://*:99999"):
        wrong = (LOCAL, address) if replay else (address.replace("127.0.0.1", "*"), "")
        setting = "kv_events_replay" if replay else "kv_events"
        with pytest.raises(ConfigError, match=f"{setting}: ZeroMQ cannot use") as raised:
            Publisher(*wrong, "pod")
        assert raised.value.param == setting


@pytest.mark.parametrize("name", ["", "a@b"])
def test_a_name_that_topics_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="kv_events_id must have no @"):
        Publisher(LOCAL, "", name)


def test_without_zeromq_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"pip install 'heddle\[kv-events\]'"):
        Publisher(LOCAL, "", "pod")
