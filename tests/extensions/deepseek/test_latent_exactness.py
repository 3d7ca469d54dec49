"""Latent attention gives the same bits whatever else is computed, and wherever its pages come from.

Alone, in company, in chunks, from the prefix cache, after preemption, from disk, at any number of
threads and at every instruction level; with float weights, and with quantised weights and latents.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest

from heddle import _native
from heddle.config import EngineConfig
from heddle.executors.cpu.load import load
from heddle.state import PAGE_TOKENS
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from models.rig import CONTEXT, GREEDY, TEXT, Bits, Rig
from models.tiny.deepseek_v2 import TinyDeepseekV2
from models.tiny.deepseek_v3 import TinyDeepseekV3

if TYPE_CHECKING:
    from models.tiny.base import TinyModel

V2 = TinyDeepseekV2(
    "exact", heads=8, kv_heads=8, head_dim=28, tied=False, layers=2, fused=True, context=CONTEXT
)
V3 = TinyDeepseekV3(
    "exact",
    heads=5,
    kv_heads=5,
    head_dim=96,
    tied=False,
    layers=2,
    rank=64,
    rope_dim=32,
    value_dim=32,
    query_rank=32,
    ffn_width=64,
    expert_width=32,
    context=CONTEXT,
)
CASES: tuple[tuple[TinyModel, dict[str, object]], ...] = (
    (V2, {}),
    (V3, {"quantize": "q8_0", "kv_type": "q8_0"}),
)
PROMPTS = [[*TEXT[:length], tail] for tail, length in enumerate((300, 300, 45, 20, 8, 299), 1)]


class Case(NamedTuple):
    checkpoint: GGUFCheckpoint
    settings: dict[str, object]
    expected: list[Bits]

    def rig(self, **settings: object) -> Rig:
        return Rig(self.checkpoint, **(self.settings | settings))


@pytest.fixture(scope="module", params=CASES, ids=lambda case: str(case[0]))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model, settings = request.param
    checkpoint = GGUFCheckpoint.open(model.write(tmp_path_factory.mktemp("model") / "tiny.gguf"))
    rig = Rig(checkpoint, slots=1, batch_tokens=CONTEXT, prefix_cache=False, **settings)
    expected = rig.one_by_one(PROMPTS)
    assert len({str(result) for result in expected}) == len(PROMPTS), "or they would prove little"
    rig.close()
    return Case(checkpoint, settings, expected)


@pytest.mark.parametrize("batch_tokens", [1, 7, 33])
def test_chunks_of_a_single_sequence(case: Case, batch_tokens: int) -> None:
    rig = case.rig(slots=1, batch_tokens=batch_tokens, prefix_cache=False)
    assert rig.one_by_one(PROMPTS[1:]) == case.expected[1:]


@pytest.mark.parametrize("batch_tokens", [16, 100])
def test_a_batch_cold_and_cached(case: Case, batch_tokens: int) -> None:
    rig = case.rig(slots=4, batch_tokens=batch_tokens)
    assert rig.run(PROMPTS) == case.expected
    assert rig.run(PROMPTS) == case.expected
    assert max(rig.found) > 256  # type: ignore[type-var]


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(case: Case, threads: int) -> None:
    """One stream with a long context: its splits go to several threads."""
    rig = case.rig(slots=1, threads=threads)
    assert rig.one_by_one(PROMPTS[:2]) == case.expected[:2]


@pytest.mark.parametrize("isa", _native.isa_levels())
def test_every_instruction_level(case: Case, isa: str) -> None:
    rig = case.rig(slots=4, isa=isa)
    assert rig.run(PROMPTS) == case.expected


def test_preempted_sequences(case: Case) -> None:
    """Four sequences start in 14 pages and need more later."""
    prompts, params = [TEXT[i : i + 90] for i in (0, 100, 200, 300)], replace(GREEDY, max_tokens=60)
    config = EngineConfig(context=CONTEXT, **case.settings)
    budget = 14 * load(case.checkpoint, config).memory.token_page_bytes
    rig = case.rig(slots=4, batch_tokens=32, kv_cache=budget)
    assert rig.run(prompts, params) == case.rig(slots=4, prefix_cache=False).run(prompts, params)
    assert rig.scheduler.admission.preemptions > 0


def test_pages_restored_after_a_restart(case: Case, tmp_path) -> None:
    for found in (0, 9 * PAGE_TOKENS):
        rig = case.rig(disk=tmp_path / "disk", slots=2, batch_tokens=32)
        assert rig.one_by_one(PROMPTS[:2]) == case.expected[:2]
        assert rig.tier is not None
        assert rig.tier.stats().restored_tokens == found
        rig.close()


def test_a_page_holds_one_vector_a_position(case: Case) -> None:
    """In f16, rank and rotated key of each layer take two bytes an element."""
    rig = case.rig(slots=1, kv_type="f16")
    model = V2 if case.settings == {} else V3
    assert rig.executor.memory.page_bytes == 2 * PAGE_TOKENS * 2 * (model.rank + model.rope_dim)
