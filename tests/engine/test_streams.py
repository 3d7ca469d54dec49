"""Reading streams from an event loop."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import END, FakeExecutor, solo_output
from fake_model import FakeTokenizer, text_of
from heddle.engine.streaming.streams import (
    POSTED,
    AsyncStreams,
    Backlog,
    Mailbox,
    delta_bytes,
)
from heddle.errors import (
    BacklogError,
    ContextLengthError,
    EngineFailedError,
    EventLoopError,
    OverloadedError,
)
from heddle.outputs import Delta, FinishReason, TokenLogprob
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from heddle.engine import Engine


def params(seed: int = 1, **fields: Any) -> SamplingParams:
    return SamplingParams(seed=seed, **fields)


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def read(stream: Any) -> str:
    return "".join([delta.text async for delta in stream])


async def read_all(streams: AsyncStreams) -> list[str]:
    texts = [""] * len(streams)
    async for index, delta in streams:
        texts[index] += delta.text
    return texts


def text(prompt: str, chosen: SamplingParams) -> str:
    tokens = solo_output(FakeTokenizer().encode(prompt), chosen, 512)
    return text_of(tokens[:-1] if tokens[-1] == END else tokens)


def test_an_async_stream_gives_the_deltas_of_stream(engine: Engine) -> None:
    async def main() -> list[Delta]:
        return [delta async for delta in engine.generate("hello", params(max_tokens=7))]

    deltas = run(main())
    output = engine.complete("hello", params(max_tokens=7))
    assert "".join(delta.text for delta in deltas) == output.text
    assert (deltas[-1].finish, deltas[-1].usage) == (output.finish, output.usage)
    assert sum((delta.tokens for delta in deltas), ()) == output.tokens


def test_a_second_task_that_reads_a_stream_gets_an_error(
    engine: Engine, executor: FakeExecutor
) -> None:
    async def main() -> None:
        executor.gate.clear()
        stream = engine.generate("hello", params(max_tokens=7))
        first = asyncio.create_task(read(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task"):
            await read(stream)
        executor.gate.set()
        assert await first == text("hello", params(max_tokens=7))

    run(main())


@pytest.mark.parametrize("patient", [False, True])
def test_closing_a_stream_wakes_the_task_that_reads_it(
    engine: Engine, executor: FakeExecutor, *, patient: bool
) -> None:
    async def wait(streams: AsyncStreams) -> list[str]:
        if patient:
            await streams.complete()
        return await read_all(streams)

    async def main() -> None:
        executor.gate.clear()
        streams = engine.generate_many([("hello", params(max_tokens=7))] * 2)
        reader = asyncio.create_task(wait(streams))
        await asyncio.sleep(0)
        streams.close()
        executor.gate.set()
        assert await reader == ["", ""]

    run(main())


def test_many_streams_run_in_one_loop(engine: Engine) -> None:
    chosen = [params(seed=i, max_tokens=40) for i in range(20)]

    async def main() -> list[str]:
        return await asyncio.gather(*(read(engine.generate("hello", one)) for one in chosen))

    assert run(main()) == [text("hello", one) for one in chosen]


def test_several_streams_are_opened_all_or_none(start, executor: FakeExecutor) -> None:
    engine = start(slots=1, queue=1)
    requests = [("hello", params(seed=i, max_tokens=5)) for i in range(2)]

    async def main() -> list[str]:
        executor.gate.clear()
        stream = engine.generate("hello", params())
        with pytest.raises(OverloadedError):
            engine.generate_many(requests)
        assert engine.snapshot().running + engine.snapshot().queue_depth == 1
        stream.close()
        executor.gate.set()
        assert [delta async for delta in stream] == []
        await asyncio.to_thread(engine.complete, "hello", params(max_tokens=1))
        return await read_all(engine.generate_many(requests))

    assert run(main()) == [text("hello", chosen) for _, chosen in requests]


def test_a_refusal_is_raised_before_the_first_delta(start) -> None:
    engine = start(context=8)

    async def main() -> None:
        with pytest.raises(ContextLengthError):
            engine.generate("hello hello", params())

    run(main())


def test_an_error_is_raised_in_place_of_the_last_delta(engine, executor: FakeExecutor) -> None:
    def before_step(step: int) -> None:
        if step == 2:
            raise RuntimeError("it burns")

    executor.before_step = before_step
    seen = []

    async def main() -> None:
        stream = engine.generate("hello", params(ignore_eos=True))
        while True:
            seen.append(await anext(stream))

    with pytest.raises(EngineFailedError, match="it burns"):
        run(main())
    assert len(seen) == 2


def test_cancelling_the_task_that_waits_for_all_cancels_the_requests(
    start, executor: FakeExecutor
) -> None:
    """The iterator still lives, so that only the cancelled task can have closed it."""
    engine = start(slots=1)
    executor.gate.clear()

    async def main() -> None:
        streams = engine.generate_many([("hello", params())])
        task = asyncio.create_task(streams.complete())
        await asyncio.to_thread(executor.entered.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert streams.tickets[0].id in engine.thread.cancels.pending()
        executor.gate.set()

    run(main())


def test_cancelling_the_reading_task_cancels_the_request(start, executor: FakeExecutor) -> None:
    engine = start(slots=1)
    executor.gate.clear()

    async def main() -> None:
        stream = engine.generate("hello", params())
        task = asyncio.create_task(read(stream))
        await asyncio.to_thread(executor.entered.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        executor.gate.set()
        assert await read(engine.generate("hello", params(max_tokens=1)))

    run(main())
    assert executor.steps == 2
    assert engine.snapshot().finished[FinishReason.CANCELLED] == 1


def test_closing_or_dropping_an_async_stream_cancels_its_request(engine: Engine, executor) -> None:
    # Each stream waits with its second token until it is closed or dropped.
    executor.before_step = lambda step: executor.gate.clear() if step in (0, 2) else None

    async def main() -> None:
        stream = engine.generate("hello", params(ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        executor.gate.set()
        assert await read(stream) == ""
        async for _ in engine.generate("hello", params(ignore_eos=True)):
            break
        gc.collect()
        executor.gate.set()
        while engine.snapshot().running:  # closing the loop would cancel them too
            await asyncio.sleep(0)

    run(main())
    engine.close(drain=True)
    assert engine.snapshot().finished[FinishReason.CANCELLED] == 2


def test_closing_the_loop_cancels_its_requests(engine, executor: FakeExecutor, caplog) -> None:
    kept = []

    async def main() -> None:
        executor.gate.clear()
        kept.append(engine.generate("hello", params(ignore_eos=True)))

    run(main())
    executor.gate.set()
    engine.complete("hello", params(max_tokens=3))
    engine.close(drain=True)
    assert engine.snapshot().finished[FinishReason.CANCELLED] == 1
    assert not caplog.records


def test_leaving_a_stream_while_the_loop_ends_raises_nothing(
    engine, executor: FakeExecutor, caplog
) -> None:
    async def main() -> None:
        async for _ in engine.generate("hello", params(ignore_eos=True)):
            executor.gate.clear()
            break

    run(main())
    executor.gate.set()
    engine.complete("hello", params(max_tokens=3))
    engine.close(drain=True)
    assert engine.snapshot().finished[FinishReason.CANCELLED] == 1
    assert not caplog.records


def test_a_stream_can_be_read_only_in_its_own_loop(engine, executor: FakeExecutor) -> None:
    async def make() -> AsyncStreams:
        return engine.generate_many([("hello", params(max_tokens=7))])

    async def read_elsewhere(streams: AsyncStreams) -> None:
        with pytest.raises(EventLoopError, match="another event loop"):
            await anext(streams)
        with pytest.raises(EventLoopError, match="another event loop"):
            await streams.complete()

    async def main() -> list[str]:
        streams = await make()
        await asyncio.to_thread(run, read_elsewhere(streams))
        executor.gate.set()
        return await read_all(streams)

    executor.gate.clear()
    assert run(main()) == [text("hello", params(max_tokens=7))]


class CountingLoop:
    """Replaces an event loop: records wake-ups, and runs them on demand."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, callback: Any) -> None:
        self.calls.append(callback)


def test_a_mailbox_wakes_its_loop_once_for_several_deltas() -> None:
    loop: Any = CountingLoop()
    mailbox = Mailbox(loop)
    several = [AsyncStreams(1, mailbox) for _ in range(3)]

    def step() -> None:
        for streams in several:
            streams.sink(0)(Delta("x"))
        assert POSTED.mailboxes.count(mailbox) == 1
        mailbox.wake()
        POSTED.mailboxes.clear()

    step()
    step()  # the loop has not run yet and needs no second wake-up
    assert len(loop.calls) == 1
    loop.calls[0]()
    assert Counter(len(streams._deltas) for streams in several) == {2: 3}
    step()
    assert len(loop.calls) == 2


def test_a_delta_posted_after_the_last_look_wakes_the_loop_again() -> None:
    loop: Any = CountingLoop()
    mailbox = Mailbox(loop)
    streams = AsyncStreams(1, mailbox)

    class PostedLate(deque[Any]):
        """The engine thread posts just after the loop finds the mailbox empty."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            if not found and len(streams._deltas) == 1:
                streams.sink(0)(Delta("late"))
                mailbox.wake()
            return found

    mailbox._posted = PostedLate()
    streams.sink(0)(Delta("early"))
    mailbox.wake()
    loop.calls.pop()()
    assert len(loop.calls) == 1
    loop.calls.pop()()
    assert [delta.text for _, delta, _ in streams._deltas] == ["early", "late"]


def test_a_step_wakes_a_loop_at_most_once(start, executor: FakeExecutor, monkeypatch) -> None:
    engine = start(
        slots=8, prefix_cache=False
    )  # otherwise seven would follow the first one's prompt
    wakes = 0
    wake = Mailbox.wake

    def count(mailbox: Mailbox) -> None:
        nonlocal wakes
        wakes += 1
        wake(mailbox)

    monkeypatch.setattr(Mailbox, "wake", count)

    async def main() -> None:
        executor.gate.clear()
        lot = [("hello", params(seed=i, max_tokens=20, ignore_eos=True)) for i in range(8)]
        streams = engine.generate_many(lot)
        executor.gate.set()
        await read_all(streams)

    run(main())
    engine.close()
    assert wakes == executor.steps == 20


# --- readers that fall behind --------------------------------------------------------------------


LAST = Delta("!", finish=FinishReason.STOP)


class FakeTicket:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def streams_of(backlog: Backlog | None, requests: int = 1) -> tuple[AsyncStreams, list[FakeTicket]]:
    loop: Any = CountingLoop()
    streams = AsyncStreams(requests, Mailbox(loop), backlog)
    tickets = [FakeTicket() for _ in range(requests)]
    streams.tickets = tickets  # type: ignore[assignment]
    return streams, tickets


async def read_one(streams: AsyncStreams) -> Delta:
    """The next delta, read in the running event loop."""
    streams._mailbox.loop = asyncio.get_running_loop()
    return (await anext(streams))[1]


def delta_of(size: int) -> Delta:
    """A delta that counts for about `size` bytes."""
    return Delta("x", (TokenLogprob(1, 0.0, ((2, 0.0),) * (size // 120)),))


def fill(streams: AsyncStreams, size: int) -> None:
    """Leave `size` bytes unread, in deltas of about 2 kB."""
    while streams.held < size:
        streams.receive(0, delta_of(2000))


def test_only_the_stream_with_the_largest_backlog_is_cancelled() -> None:
    backlog = Backlog(1_000_000)
    (small, kept), (large, lost), (new, young) = (streams_of(backlog, 2) for _ in range(3))
    fill(small, 300_000)
    fill(large, 600_000)
    assert not backlog.cut
    fill(new, 200_000)
    assert backlog.cut == 1
    assert (large.held, backlog.held) == (0, small.held + new.held)
    assert [ticket.cancelled for ticket in lost] == [True, True]
    assert not any(ticket.cancelled for ticket in kept + young)
    large.receive(0, delta_of(2000))  # a delta that was posted before the cancel
    assert large.held == 0
    with pytest.raises(BacklogError, match="more than 1000000 bytes"):
        run(read_one(large))
    held = backlog.held
    delta = run(read_one(small))
    assert delta.text == "x"
    assert backlog.held == held - delta_bytes(delta)


def test_read_and_dropped_deltas_leave_the_backlog() -> None:
    backlog = Backlog(1_000_000)
    read_from, _ = streams_of(backlog)

    async def main() -> None:
        for _ in range(100):
            fill(read_from, 900_000)
            while read_from.held:
                await read_one(read_from)

    run(main())
    for _ in range(10):
        dropped, _ = streams_of(backlog)
        fill(dropped, 900_000)
        del dropped
    assert (backlog.cut, backlog.held) == (0, 0)


def test_a_waiting_reader_gets_the_error_of_its_cancelled_stream() -> None:
    async def main() -> None:
        backlog = Backlog(100_000)
        streams, _ = streams_of(backlog, requests=2)
        streams._mailbox.loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(streams.complete())
        await asyncio.sleep(0)
        fill(streams, 60_000)
        await asyncio.sleep(0)
        assert not waiting.done()
        while not backlog.cut:
            streams.receive(0, delta_of(2000))
        await waiting
        with pytest.raises(BacklogError):
            await read_one(streams)

    run(main())


def test_a_reader_of_all_streams_is_woken_once() -> None:
    async def main() -> None:
        streams, _ = streams_of(None, requests=2)
        streams._mailbox.loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(streams.complete())
        await asyncio.sleep(0)
        for delta in (Delta("a"), LAST, Delta("b")):
            streams.receive(0, delta)
            await asyncio.sleep(0)
            assert not waiting.done()
            assert streams._arrival is not None and not streams._arrival.done()
        streams.receive(1, LAST)
        await waiting
        assert [(await read_one(streams)).text for _ in range(4)] == ["a", "!", "b", "!"]

    run(main())


def test_an_unread_answer_beyond_the_backlog_ends_its_request(
    start, executor: FakeExecutor
) -> None:
    engine = start(slots=1, context=2048)
    backlog = Backlog(64 * 1024)
    executor.before_step = lambda step: executor.gate.clear() if step == 1000 else None

    async def main() -> None:
        long = params(ignore_eos=True, max_tokens=2000)
        streams = engine.generate_many([("hello", long)], backlog)
        while not backlog.cut:
            await asyncio.sleep(0)
        executor.gate.set()
        await asyncio.to_thread(
            engine.complete, "hello", params(max_tokens=1)
        )  # the next request runs
        assert backlog.cut == 1
        with pytest.raises(BacklogError):
            await anext(streams)

    run(main())
    finished = engine.snapshot().finished
    assert (finished[FinishReason.CANCELLED], finished[FinishReason.LENGTH]) == (1, 1)


def test_the_counted_size_of_a_delta_is_near_its_memory() -> None:
    for alternatives in (0, 20):
        before = tracemalloc_of(lambda: None)
        taken = tracemalloc_of(lambda n=alternatives: [real_delta(i, n) for i in range(1000)])
        assert 0.8 < (taken - before) / 1000 / delta_bytes(real_delta(0, alternatives)) < 1.25


def real_delta(index: int, alternatives: int) -> Delta:
    top = tuple((1000 * index + other, index / 7 + other) for other in range(alternatives))
    return Delta(f"abc{index}", (TokenLogprob(1000 + index, index / 3, top),))


def tracemalloc_of(make: Any) -> int:
    gc.collect()  # otherwise tuples from the interpreter's free list would cost nothing
    tracemalloc.start()
    kept = make()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return taken
