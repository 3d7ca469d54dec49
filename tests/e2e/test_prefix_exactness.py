"""Tokens and logprobs have the same bits whatever the prefix cache does, on real models.

One engine without a cache, with one slot and one thread, gives the expected outputs. Engines with a
cache must give the same: cold, warm, from the middle of a page, after eviction, in the next turn of
a conversation, while a prefix is being computed for several requests, and from disk.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.engine.engine import Engine
from heddle.extensions.llamacpp.slot_files import restore_slot, save_slot
from heddle.sampling_params import SamplingParams
from heddle.state import PAGE_TOKENS
from story import STORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from heddle.outputs import Output

pytestmark = pytest.mark.usefixtures("costless_guesses")

TAILS = (" One day", " Her daughter asked:", "\n\nQuestion: what is a reed?\n", " 1 2 3", " And")
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=5, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.9, top_p=0.95, seed=7)

Request = tuple["Sequence[int]", SamplingParams]
Bits = tuple[object, ...]


def bits(output: Output) -> Bits:
    return output.text, output.tokens, output.finish


def cached(outputs: Sequence[Output]) -> list[int]:
    return [output.usage.cached_tokens for output in outputs]


def one_by_one(engine: Engine, requests: Sequence[Request]) -> list[Output]:
    return [engine.complete(*request) for request in requests]


def at_once(engine: Engine, requests: Sequence[Request]) -> list[Output]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: engine.complete(*request), requests))


@dataclass(frozen=True)
class Case:
    """A model, prompts that begin alike in the middle of a page, and what they must give."""

    model: str
    prefix: int
    requests: tuple[Request, ...]
    expected: tuple[Bits, ...]
    page_bytes: int

    def engine(self, **settings: Any) -> Engine:
        return Engine.load(self.model, EngineConfig(**settings))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(DEFAULT_MODEL, marks=pytest.mark.model),
        pytest.param("gemma3-270m", marks=pytest.mark.large),
        pytest.param("qwen2.5-coder-1.5b", marks=pytest.mark.large),
    ],
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    config = EngineConfig(slots=1, threads=1, prefix_cache=False, speculation="off")
    with Engine.load(request.param, config) as engine:
        encode = engine.model.tokenizer.encode
        prefix = encode(STORY * 4)[: 4 * PAGE_TOKENS + 5]
        prompts = [[*prefix, *encode(tail, add_special=False)] for tail in TAILS]
        params = [GREEDY, DRAWN] * 3
        requests = tuple(zip(prompts, params, strict=False))
        expected = tuple(map(bits, one_by_one(engine, requests)))
        assert len({text for text, *_ in expected}) == len(TAILS), "or they would prove little"
        page_bytes = engine.model.executor.memory.page_bytes
        yield Case(request.param, len(prefix), requests, expected, page_bytes)


def same(outputs: Sequence[Output], case: Case) -> bool:
    return tuple(map(bits, outputs)) == case.expected


def test_cold_then_from_the_middle_of_a_page_then_warm(case: Case) -> None:
    with case.engine() as engine:
        first, again = (one_by_one(engine, case.requests) for _ in range(2))
    assert same(first, case)
    assert same(again, case)
    assert cached(first) == [0, *[case.prefix] * (len(first) - 1)]
    assert cached(again) == [len(prompt) - 1 for prompt, _ in case.requests]


@pytest.mark.parametrize("batch_tokens", [24, 512])
def test_all_at_once_from_cold(case: Case, batch_tokens: int) -> None:
    """In small steps most of them wait for a while, and attach while others run."""
    with case.engine(batch_tokens=batch_tokens) as engine:
        outputs = at_once(engine, case.requests)
        computed = engine.snapshot().computed_prompt_tokens
    assert same(outputs, case)
    tails = [len(prompt) - case.prefix for prompt, _ in case.requests]
    assert computed == case.prefix + sum(tails)


def test_after_eviction_and_in_little_room(case: Case) -> None:
    """Ten pages: one request and half the cache of another."""
    with case.engine(kv_cache=10 * case.page_bytes) as engine:
        first = one_by_one(engine, case.requests)
        other = [token for token in reversed(case.requests[0][0]) for _ in range(2)]
        engine.complete(other, replace(GREEDY, max_tokens=1))
        assert engine.snapshot().prefix_cache.evictions > 0
        again = one_by_one(engine, case.requests)
        assert same(first, case)
        assert same(again, case)
        assert cached(again)[0] < cached(first)[-1]
        assert same(at_once(engine, case.requests), case)


def test_next_turns_find_what_was_generated(case: Case) -> None:
    turns = [
        [*prompt, *(token.token for token in tokens), *case.requests[0][0][:9]]  # type: ignore[attr-defined]
        for (prompt, _), (_, tokens, _) in zip(case.requests, case.expected, strict=True)
    ]
    with case.engine(prefix_cache=False, slots=1, threads=1) as engine:
        expected = list(map(bits, one_by_one(engine, [(turn, GREEDY) for turn in turns])))
    with case.engine() as engine:
        at_once(engine, case.requests)
        outputs = at_once(engine, [(turn, GREEDY) for turn in turns])
    assert list(map(bits, outputs)) == expected
    assert cached(outputs) == [len(turn) - 10 for turn in turns]


def test_the_same_request_many_times_at_once(case: Case) -> None:
    with case.engine(batch_tokens=40) as engine:
        for request, expected in zip(case.requests[:2], case.expected, strict=False):
            assert {bits(output) for output in at_once(engine, [request] * 8)} == {expected}


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4"])
def test_from_disk_after_a_restart(case: Case, tmp_path: Path, kv_type: str) -> None:
    """Whole pages come back, for all at once as for one after the other."""
    settings = {"prefix_cache_dir": str(tmp_path / "cache"), "kv_type": kv_type}
    with case.engine(**settings) as engine:
        first = one_by_one(engine, case.requests)
        assert same(first, case) or kv_type != "f16"
    for ask, batch_tokens in ((one_by_one, 512), (at_once, 24)):
        with case.engine(batch_tokens=batch_tokens, **settings) as engine:
            outputs = ask(engine, case.requests)
            disk = engine.snapshot().prefix_cache.disk
        assert list(map(bits, outputs)) == list(map(bits, first))
        assert disk is not None
        assert disk.restored_tokens == 4 * PAGE_TOKENS
        assert min(cached(outputs)) == 4 * PAGE_TOKENS


def test_from_the_file_of_a_slot(case: Case, tmp_path: Path) -> None:
    """The tokens of prompt and output come back, those after the last full page by a step."""
    with case.engine() as engine:
        first = one_by_one(engine, case.requests[:1])
        saved, size = save_slot(engine, 0, tmp_path / "slot")
    with case.engine() as engine:
        assert restore_slot(engine, 1, tmp_path / "slot") == (saved, size)
        assert engine.snapshot().computed_prompt_tokens <= PAGE_TOKENS
        outputs = one_by_one(engine, case.requests)
    assert same(outputs, case)
    assert saved == len(case.requests[0][0]) + len(first[0].tokens) - 1
    assert cached(outputs)[:2] == [len(case.requests[0][0]) - 1, case.prefix]


def test_from_disk_after_eviction_in_little_room(case: Case, tmp_path: Path) -> None:
    settings = {"prefix_cache_dir": str(tmp_path / "cache"), "kv_cache": 10 * case.page_bytes}
    with case.engine(**settings) as engine:
        one_by_one(engine, case.requests)
        other = [token for token in reversed(case.requests[0][0]) for _ in range(2)]
        engine.complete(other, replace(GREEDY, max_tokens=1))
        while engine.thread._loop.cache._tier._saves:  # what is not written yet is not found
            engine.complete(other[:1], replace(GREEDY, max_tokens=1))
        again = one_by_one(engine, case.requests)
        stats = engine.snapshot().prefix_cache
        assert same(again, case)
        assert same(at_once(engine, case.requests), case)
    assert stats.evictions > 0
    assert stats.disk is not None
    assert stats.disk.restored_tokens > 0
    assert cached(again)[0] == 4 * PAGE_TOKENS
