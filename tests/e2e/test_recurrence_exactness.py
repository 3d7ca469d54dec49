"""A recurrent model gives the same tokens whatever happens to its states.

The model is a small recurrence that this file defines: each token changes a state of fixed size,
and the next token depends on the state alone. So a state that is cleared, restored or copied at the
wrong moment shows in the tokens, or in the executor's own check.
"""

from __future__ import annotations

import zlib
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import VOCABULARY, FakeExecutor, Occupant, state_after
from fake_model import fake_model
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.sampling_params import SamplingParams
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from heddle.outputs import Output

EVERY = 64
TEXT = [(7 * i * i + 3 * i) % 31 + 1 for i in range(300)]
PROMPTS = [[*TEXT[:length], tail] for tail, length in enumerate((200, 200, 130, 64, 63, 5), 1)]


def token_of(state: int, seed: int | None) -> int:
    """The next token: a hash of the state."""
    return zlib.crc32(repr((state, seed)).encode()) % VOCABULARY


class Recurrence(FakeExecutor):
    """The fake executor, with tokens that come from the slots' states."""

    def _choose(self, occupant: Occupant, history: Sequence[int]) -> int:
        (slot,) = (slot for slot, other in self.slots.items() if other is occupant)
        return token_of(self.states_at[slot][len(history)], occupant.params.seed)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**({"seed": 1, "ignore_eos": True, "max_tokens": 20} | fields))


def expected(prompt: Sequence[int], count: int = 20) -> list[int]:
    """The tokens that follow a prompt, by the definition."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(token_of(state_after(tokens), 1))
    return tokens[len(prompt) :]


def said(output: Output) -> list[int]:
    return [token.token for token in output.tokens]


def at_once(engine: Engine, prompts: Sequence[Sequence[int]], **fields: Any) -> list[Output]:
    collectors = [Collector() for _ in prompts]
    wanted = zip(prompts, repeat(params(**fields)), collectors, strict=False)
    engine.submit_many(wanted)
    return [collector.wait() for collector in collectors]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("heddle.disk.tier.PATIENCE", PATIENCE)
    monkeypatch.setattr("heddle.disk.tier._CLOSE_SECONDS", PATIENCE)
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"weights")
    engines = []

    def starter(pages: int = 64, snapshots: int = 40, **settings: Any) -> Engine:
        executor = Recurrence(pages, snapshots=snapshots, snapshot_tokens=EVERY)
        model = fake_model(executor, path=weights)
        engines.append(Engine(model, EngineConfig(**settings)))
        return engines[-1]

    yield starter
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("batch_tokens", [1, 7, 64, 512])
def test_alone_in_chunks(start: Any, batch_tokens: int) -> None:
    engine = start(slots=1, batch_tokens=batch_tokens, prefix_cache=False)
    for prompt in PROMPTS:
        assert said(engine.complete(prompt, params())) == expected(prompt)


@pytest.mark.parametrize("batch_tokens", [16, 512])
def test_in_company_from_cold_then_warm(start: Any, batch_tokens: int) -> None:
    engine = start(slots=4, batch_tokens=batch_tokens)
    for _ in range(2):
        outputs = at_once(engine, PROMPTS)
        assert list(map(said, outputs)) == list(map(expected, PROMPTS))
    assert max(output.usage.cached_tokens for output in outputs) > 0


def test_a_hit_begins_at_the_last_snapshot(start: Any) -> None:
    engine = start()
    prompt = TEXT[:150]
    found = []
    for tokens in (prompt, prompt, [*prompt, 3, 4], [*TEXT[:140], 9]):
        output = engine.complete(tokens, params())
        assert said(output) == expected(tokens)
        found.append(output.usage.cached_tokens)
    assert found == [0, 2 * EVERY, 150, 2 * EVERY], "a multiple, or where a prompt ended"


def test_requests_with_one_prefix_compute_it_once_up_to_a_snapshot(start: Any) -> None:
    engine = start(slots=6, batch_tokens=32)
    prompts = [[*TEXT[:200], tail] for tail in range(1, 7)]
    assert list(map(said, at_once(engine, prompts))) == list(map(expected, prompts))
    tail = 201 - 3 * EVERY
    assert engine.snapshot().computed_prompt_tokens == 3 * EVERY + len(prompts) * tail


def test_after_preemption(start: Any) -> None:
    engine = start(pages=14, slots=4, batch_tokens=32)
    prompts = [TEXT[i : i + 90] for i in range(0, 120, 30)]
    outputs = at_once(engine, prompts, max_tokens=60)
    assert list(map(said, outputs)) == [expected(prompt, 60) for prompt in prompts]
    assert engine.snapshot().preemptions > 0


def test_with_fewer_snapshots_than_there_are_positions_for(start: Any) -> None:
    engine = start(snapshots=1, slots=4)
    for _ in range(2):
        assert list(map(said, at_once(engine, PROMPTS))) == list(map(expected, PROMPTS))


def test_driven_sequences_trim_and_restore(start: Any) -> None:
    engine = start(slots=2)
    sequence = engine.create_sequence(SamplingParams(seed=1))
    first = [sequence.decode_prompt(TEXT[:100]).token]
    first += [sequence.sample_next().token for _ in range(60)]
    assert first == expected(TEXT[:100], 61)
    kept = sequence.snapshot()
    for keep in (130, 128, 101, 40):
        sequence.trim(keep)
        tokens = [*TEXT[:100], *first][:keep]
        assert sequence.sample_next().token == expected(tokens, 1)[0]
    sequence.restore(kept)
    assert sequence.sample_next().token == expected([*TEXT[:100], *first], 1)[0]


def test_a_flush_and_a_switch_leave_running_sequences_right(start: Any) -> None:
    engine = start(slots=2)
    sequence = engine.create_sequence(SamplingParams(seed=1))
    tokens = [sequence.decode_prompt(TEXT[:70]).token]
    engine.flush_prefix_cache()
    tokens += [sequence.sample_next().token for _ in range(70)]
    assert tokens == expected(TEXT[:70], 71)
    output = engine.complete(TEXT[:70], params())
    assert (said(output), output.usage.cached_tokens) == (expected(TEXT[:70]), 0)


def test_from_disk_after_a_restart(start: Any, tmp_path: Path) -> None:
    settings = {"prefix_cache_dir": str(tmp_path / "cache"), "slots": 4}
    with start(**settings) as engine:
        engine.complete(PROMPTS[0], params())
    with start(**settings) as engine:
        outputs = at_once(engine, PROMPTS[:3])
        disk = engine.snapshot().prefix_cache.disk
    assert list(map(said, outputs)) == list(map(expected, PROMPTS[:3]))
    assert disk.restored_tokens > 0
    assert [output.usage.cached_tokens for output in outputs] == [3 * EVERY, 3 * EVERY, 2 * EVERY]


def test_a_damaged_snapshot_is_computed_again(start: Any, tmp_path: Path) -> None:
    settings = {"prefix_cache_dir": str(tmp_path / "cache"), "slots": 1}
    with start(**settings) as engine:
        engine.complete(PROMPTS[0], params())
    smallest = min((tmp_path / "cache").glob("*.page"), key=lambda path: path.stat().st_size)
    for path in (tmp_path / "cache").glob("*.page"):
        if path.stat().st_size < smallest.stat().st_size + 1000:  # the snapshots
            path.write_bytes(b"?" * path.stat().st_size)
    with start(**settings) as engine:
        output = engine.complete(PROMPTS[0], params())
        assert engine.snapshot().prefix_cache.disk.errors > 0
    assert (said(output), output.usage.cached_tokens) == (expected(PROMPTS[0]), 0)
