"""Threads and event loops use one engine at the same time; some cancel early."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from fake_executor import FakeExecutor, solo_output
from fake_model import fake_model, text_of
from heddle import LLM, Engine, EngineConfig, FinishReason, SamplingParams
from heddle.errors import InvalidRequestError, NonFiniteLogitsError

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT = "hello"
IDS = [8, 5, 12, 12, 15]
LONG = SamplingParams(seed=1, ignore_eos=True)
"""For those who leave: never done before they have, since each of its tokens takes longer."""


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor(pages=2048)


@pytest.fixture
def llm(executor: FakeExecutor) -> Iterator[LLM]:
    with LLM(Engine(fake_model(executor, context=50_000), EngineConfig(slots=4, queue=500))) as llm:
        yield llm


def drawn(seed: int) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=20, ignore_eos=True)


def right(seed: int, text: str) -> bool:
    return text == text_of(solo_output(IDS, drawn(seed), 512))


async def read(engine: Engine, seed: int) -> str:
    return "".join([delta.text async for delta in engine.generate(PROMPT, drawn(seed))])


async def leave_early(engine: Engine) -> None:
    async with aclosing(engine.generate(PROMPT, LONG)) as deltas:
        await anext(deltas)


async def cancelled_midway(engine: Engine) -> None:
    task = asyncio.create_task(read_all(engine))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def read_all(engine: Engine) -> None:
    async for _ in engine.generate(PROMPT, LONG):
        pass


def test_threads_and_event_loops_share_one_engine(llm: LLM) -> None:
    def batch(first: int) -> bool:
        seeds = range(first, first + 10)
        outputs = llm.generate([PROMPT] * 10, [drawn(seed) for seed in seeds])
        return all(right(seed, output.text) for seed, output in zip(seeds, outputs, strict=True))

    def streams(first: int) -> bool:
        return all(
            right(seed, "".join(delta.text for delta in llm.engine.stream(PROMPT, drawn(seed))))
            for seed in range(first, first + 10)
        )

    def loop(first: int) -> bool:
        async def main() -> bool:
            leaving = [f(llm.engine) for f in (leave_early, cancelled_midway) for _ in range(5)]
            seeds = range(first, first + 10)
            texts, _ = await asyncio.gather(
                asyncio.gather(*(read(llm.engine, seed) for seed in seeds)),
                asyncio.gather(*leaving),
            )
            return all(right(seed, text) for seed, text in zip(seeds, texts, strict=True))

        return asyncio.run(main())

    work = [batch, streams, loop] * 3
    with ThreadPoolExecutor(len(work)) as pool:
        assert all(pool.map(lambda job: job[1](100 * job[0]), enumerate(work)))
    finished = llm.engine.snapshot().finished
    assert finished[FinishReason.LENGTH] == 90
    assert finished[FinishReason.CANCELLED] == 30, "those whose readers left"


def test_a_request_without_a_token_raises_only_in_its_caller(
    llm: LLM, executor: FakeExecutor
) -> None:
    def fail_once(history: object) -> bool:
        executor.poisonous = lambda history: False
        return True

    async def main() -> list[str | BaseException]:
        executor.poisonous = fail_once
        tasks = [asyncio.create_task(read(llm.engine, seed)) for seed in range(4)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    assert isinstance(results.pop(0), NonFiniteLogitsError)
    assert all(isinstance(text, str) and right(seed, text) for seed, text in enumerate(results, 1))
    [output] = llm.generate([PROMPT], drawn(5))
    assert right(5, output.text)


def test_a_refusal_is_raised_in_its_own_caller(llm: LLM) -> None:
    async def main() -> None:
        with pytest.raises(InvalidRequestError):
            llm.engine.generate([99])
        assert right(1, await read(llm.engine, 1))

    asyncio.run(main())
