"""A model with windowed layers gives the same bits whatever happens to its windowed pages.

One executor keeps all positions of all layers, as if there were no windows. Executors that give
windowed pages back must compute the same tokens and log probabilities: alone, in company, in
chunks, from the prefix cache, after revocation and preemption, and from disk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from heddle.config import EngineConfig
from heddle.executors.cpu.load import load
from heddle.scheduler.sequence import Sequence
from heddle.state import PAGE_TOKENS, pages_for
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.rig import CONTEXT, GREEDY, TEXT, Bits, Rig
from models.tiny.gemma3 import TinyGemma3
from models.tiny.gemma4 import TinyGemma4
from models.tiny.llama4 import TinyLlama4
from steps import execute

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.executors.cpu.executor import CpuExecutor
    from heddle.sampling_params import SamplingParams
    from heddle.weights.checkpoint import Checkpoint
    from models.tiny.base import TinyModel

WINDOW = 40
SIZES = {"heads": 4, "kv_heads": 2, "head_dim": 16, "window": WINDOW, "context": CONTEXT}
CHUNKED = {name: size for name, size in SIZES.items() if name != "window"}
MODELS = (
    TinyGemma3("windowed", tied=True, layers=7, **SIZES),
    TinyGemma4("windowed", tied=True, layers=6, shared=2, input_width=10, **SIZES),
    TinyLlama4("chunked", tied=False, experts=5, chunk=WINDOW, growth=100, **CHUNKED),
)
"""The second has pages of two shapes. Two layers read the keys and values of other layers. A token
of the third sees its run of `WINDOW` positions."""
DRAWN = replace(GREEDY, temperature=0.9, seed=7)
LENGTHS = (600, 600, 300, 45, 20, 8, 599)
PROMPTS = [[*TEXT[:length], tail] for tail, length in enumerate(LENGTHS, 1)]


@pytest.fixture(scope="module", params=MODELS, ids=str)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    model: TinyModel = request.param
    folder = tmp_path_factory.mktemp("model")
    if isinstance(model, TinyLlama4):
        return HuggingFaceCheckpoint.open(model.write_folder(folder))
    return GGUFCheckpoint.open(model.write(folder / "windowed.gguf"))


def alone(checkpoint: Checkpoint, prompts: list[list[int]], params: SamplingParams) -> list[Bits]:
    """The results of each prompt if no page is ever released."""
    rig = Rig(checkpoint, slots=1, batch_tokens=CONTEXT, prefix_cache=False)
    assert keeps_all(rig), "steps as large as the context spare no page"
    return [rig.run([prompt], params)[0] for prompt in prompts]


def keeps_all(rig: Rig) -> bool:
    """Whether a step may hold all pages of a sequence in every group."""
    return all(window.reach == pages_for(CONTEXT) for window in rig.executor.memory.windows)


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint) -> list[Bits]:
    results = alone(checkpoint, PROMPTS, GREEDY)
    assert len({str(result) for result in results}) == len(PROMPTS), "or they would prove little"
    return results


def pages_of(executor: CpuExecutor, count: int) -> int:
    """A `kv_cache` setting for `count` pages of every group."""
    return count * executor.memory.token_page_bytes


@pytest.mark.parametrize("batch_tokens", [1, 7, 33, 200])
def test_chunks_of_a_single_sequence_give_the_same_bits(
    checkpoint: Checkpoint, expected: list[Bits], batch_tokens: int
) -> None:
    rig = Rig(checkpoint, slots=1, batch_tokens=batch_tokens, prefix_cache=False)
    (window,) = rig.executor.memory.windows
    assert window.positions == WINDOW
    assert window.pages < rig.executor.memory.pages
    assert rig.one_by_one(PROMPTS) == expected


@pytest.mark.parametrize("batch_tokens", [16, 100])
def test_a_batch_gives_the_same_bits_cold_and_cached(
    checkpoint: Checkpoint, expected: list[Bits], batch_tokens: int
) -> None:
    rig = Rig(checkpoint, slots=4, batch_tokens=batch_tokens)
    assert rig.run(PROMPTS) == expected
    assert rig.run(PROMPTS) == expected
    assert max(rig.found) > 0  # type: ignore[type-var]


def test_a_hit_ends_at_the_last_token_with_complete_windows(
    checkpoint: Checkpoint, expected: list[Bits]
) -> None:
    rig = Rig(checkpoint, slots=2, batch_tokens=32)
    assert rig.one_by_one(PROMPTS[:1]) == expected[:1]
    assert rig.one_by_one(PROMPTS[1:2]) == expected[1:2]
    assert rig.found == [600]
    again = rig.one_by_one(PROMPTS[:1])
    assert (again, rig.found) == (expected[:1], [600])


def test_revoked_windowed_pages_shorten_a_hit(checkpoint: Checkpoint, expected: list[Bits]) -> None:
    rig = Rig(checkpoint, slots=1, batch_tokens=32)
    rig.one_by_one(PROMPTS[:1])
    (group,) = rig.cache._pools.windows
    while group.pool.revoke():
        pass
    results = rig.one_by_one(PROMPTS[1:2])
    assert (results, rig.found) == (expected[1:2], [0])
    results = rig.one_by_one(PROMPTS[:1])
    assert (results, rig.found) == (expected[:1], [600]), "the tree took the new windows"


def test_requests_with_one_prefix_compute_it_once(
    checkpoint: Checkpoint, expected: list[Bits]
) -> None:
    rig = Rig(checkpoint, slots=4, batch_tokens=48)
    prompts = [[*TEXT[:500], tail] for tail in range(1, 5)]
    assert rig.run(prompts) == alone(checkpoint, prompts, GREEDY)
    assert rig.scheduler.computed_prompt_tokens == 500 + len(prompts)


def test_preempted_sequences_give_the_same_bits(checkpoint: Checkpoint) -> None:
    """Four sequences start in 14 pages and need more later."""
    prompts, params = [TEXT[i : i + 90] for i in (0, 100, 200, 300)], replace(GREEDY, max_tokens=60)
    budget = pages_of(load(checkpoint, EngineConfig(context=CONTEXT, batch_tokens=32)), 14)
    rig = Rig(checkpoint, slots=4, batch_tokens=32, kv_cache=budget)
    assert rig.run(prompts, params) == alone_at_once(checkpoint, prompts, params)
    assert rig.scheduler.admission.preemptions > 0


def alone_at_once(
    checkpoint: Checkpoint, prompts: list[list[int]], params: SamplingParams
) -> list[Bits]:
    """As `alone`, with the seeds of requests that run at once."""
    rig = Rig(checkpoint, slots=len(prompts), batch_tokens=CONTEXT, prefix_cache=False)
    assert keeps_all(rig)
    return rig.run(prompts, params)


def test_sampled_tokens_are_the_same_with_few_pages(checkpoint: Checkpoint) -> None:
    budget = pages_of(load(checkpoint, EngineConfig(context=CONTEXT, batch_tokens=24)), 19)
    rig = Rig(checkpoint, slots=3, batch_tokens=24, kv_cache=budget)
    expected = alone_at_once(checkpoint, PROMPTS, DRAWN)
    for _ in range(2):
        assert rig.run(PROMPTS, DRAWN) == expected
    assert rig.cache.stats().evictions > 0


def test_pages_restored_after_a_restart_give_the_same_bits(
    checkpoint: Checkpoint, expected: list[Bits], tmp_path: Path
) -> None:
    for found in (0, 5 * PAGE_TOKENS):
        rig = Rig(checkpoint, tmp_path / "disk", slots=2, batch_tokens=32)
        prompts = [TEXT[:170], TEXT[:165]]
        results = rig.one_by_one(prompts)
        assert results == alone(checkpoint, prompts, GREEDY)
        assert rig.tier.stats().restored_tokens == found
        rig.close()


@pytest.mark.parametrize("tokens", [40, 500, CONTEXT])
def test_a_sequence_holds_only_the_pages_that_its_windows_need(
    checkpoint: Checkpoint, tokens: int
) -> None:
    rig = Rig(checkpoint, slots=1, batch_tokens=32)
    params = replace(GREEDY, max_tokens=1, seed=0)
    prompt = (TEXT * 2)[: tokens - 1]
    rig.scheduler.add(Sequence(0, params, prompt, len(prompt), frozenset()))
    most = 0
    while rig.scheduler.busy:
        rig.scheduler.update(execute(rig.executor, rig.scheduler.schedule()))
        slot = rig.scheduler.slots[0]
        most = max(most, len(slot.table.windows[0].pages)) if slot else most
    (window,) = rig.executor.memory.windows
    assert most <= window.reach == 4
