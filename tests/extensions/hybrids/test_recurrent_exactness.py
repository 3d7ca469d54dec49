"""A recurrent model gives the same bits whatever happens to its states.

Each prompt alone, in one chunk, is the reference: chunks, company, prefix hits, snapshots on disk,
preemption, thread counts and instruction levels must give its tokens and log probabilities.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from devices import HERE
from heddle import _native
from heddle.config import EngineConfig
from heddle.errors import ConfigError
from heddle.executors.cpu.load import load
from heddle.scheduler.sequence import Sequence
from heddle.state import SNAPSHOT_TOKENS
from heddle.step import Deferred, Sampled
from heddle.token_rules import TokenRules
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from models.rig import CONTEXT, GREEDY, TEXT, Bits, Rig
from models.tiny.falcon_h1 import TinyFalconH1
from models.tiny.granitemoehybrid import TinyGraniteHybridMoe
from models.tiny.jamba import TinyJamba
from models.tiny.kimi_linear import TinyKimiLinear
from models.tiny.lfm2 import TinyLfm2
from models.tiny.mamba2 import TinyMamba2
from models.tiny.nemotron_h import TinyNemotronHMoe
from models.tiny.qwen3_5 import TinyQwen35
from models.tiny.rwkv7 import TinyRwkv7
from patience import PATIENCE
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens
    from pathlib import Path

    from heddle.sampling_params import SamplingParams
    from models.tiny.base import TinyModel

MODELS: tuple[TinyModel, ...] = (
    TinyQwen35(
        "recurrent", heads=4, kv_heads=2, head_dim=16, tied=True, value_dim=40, context=CONTEXT
    ),
    TinyLfm2("recurrent", heads=4, kv_heads=2, head_dim=16, tied=True, context=CONTEXT),
    TinyGraniteHybridMoe(
        "recurrent", heads=4, kv_heads=2, head_dim=16, tied=True, rotates=True, context=CONTEXT
    ),
    TinyKimiLinear("recurrent", heads=3, kv_heads=3, head_dim=28, tied=True, context=CONTEXT),
    TinyFalconH1("recurrent", heads=4, kv_heads=2, head_dim=16, tied=False, context=CONTEXT),
    TinyMamba2("recurrent", heads=4, kv_heads=4, head_dim=16, tied=False, context=CONTEXT),
    TinyNemotronHMoe("recurrent", heads=4, kv_heads=2, head_dim=16, tied=False, context=CONTEXT),
    TinyJamba("recurrent", heads=2, kv_heads=1, head_dim=16, tied=True, context=CONTEXT),
    TinyRwkv7("recurrent", heads=2, kv_heads=2, head_dim=16, tied=False, context=CONTEXT),
)
EVERY = 64
LENGTHS = (500, 500, 300, 129, 64, 63, 5)
PROMPTS = [[*TEXT[:length], tail] for tail, length in enumerate(LENGTHS, 1)]
DRAWN = replace(GREEDY, temperature=0.9, seed=7)
assert EVERY < SNAPSHOT_TOKENS


@pytest.fixture(scope="module", params=MODELS, ids=str)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> GGUFCheckpoint:
    model: TinyModel = request.param
    return GGUFCheckpoint.open(model.write(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def expected(checkpoint: GGUFCheckpoint) -> list[Bits]:
    rig = Rig(checkpoint, slots=1, batch_tokens=CONTEXT, prefix_cache=False, state_every=CONTEXT)
    results = rig.one_by_one(PROMPTS)
    assert len({str(result) for result in results}) == len(PROMPTS), "or they would prove little"
    return results


@pytest.mark.parametrize("batch_tokens", [1, 7, 33, 200])
@pytest.mark.parametrize("threads", [1, 3])
def test_chunks_and_threads(
    checkpoint: GGUFCheckpoint, expected: list[Bits], batch_tokens: int, threads: int
) -> None:
    rig = Rig(checkpoint, slots=1, batch_tokens=batch_tokens, threads=threads, prefix_cache=False)
    assert rig.one_by_one(PROMPTS) == expected


@pytest.mark.parametrize("level", _native.isa_levels())
def test_instruction_levels(checkpoint: GGUFCheckpoint, expected: list[Bits], level: str) -> None:
    rig = Rig(checkpoint, slots=4, batch_tokens=50, isa=level, prefix_cache=False)
    assert rig.run(PROMPTS) == expected


@pytest.mark.parametrize("batch_tokens", [16, 100])
def test_company_cold_and_cached(
    checkpoint: GGUFCheckpoint, expected: list[Bits], batch_tokens: int
) -> None:
    rig = Rig(checkpoint, slots=4, batch_tokens=batch_tokens, state_every=EVERY)
    for _ in range(2):
        assert rig.run(PROMPTS) == expected
    assert any(rig.found)


def test_a_hit_begins_at_a_snapshot(checkpoint: GGUFCheckpoint, expected: list[Bits]) -> None:
    rig = Rig(checkpoint, slots=2, batch_tokens=32, state_every=EVERY)
    found = []
    for index in (0, 1, 1, 3):
        assert rig.one_by_one([PROMPTS[index]]) == [expected[index]]
        found += rig.found
    assert found == [0, 448, 448, 128], "the last snapshot before the other tail"
    assert rig.cache.stats().lost_tokens == 52 + 52 + 1


def test_one_prefix_is_computed_once(checkpoint: GGUFCheckpoint) -> None:
    prompts = [[*TEXT[:500], tail] for tail in range(1, 5)]
    alone = Rig(checkpoint, slots=4, batch_tokens=CONTEXT, prefix_cache=False).run(prompts)
    rig = Rig(checkpoint, slots=4, batch_tokens=48, state_every=EVERY)
    assert rig.run(prompts) == alone
    assert rig.scheduler.computed_prompt_tokens == 448 + len(prompts) * 53


def test_preemption(checkpoint: GGUFCheckpoint) -> None:
    prompts, params = [TEXT[i : i + 90] for i in (0, 100, 200, 300)], replace(DRAWN, max_tokens=60)
    roomy = Rig(checkpoint, slots=4, batch_tokens=CONTEXT, prefix_cache=False)
    memory = roomy.executor.memory
    budget = (memory.states + 3) * memory.snapshot_bytes + 14 * memory.page_bytes
    rig = Rig(checkpoint, slots=4, batch_tokens=32, kv_cache=budget, state_every=EVERY)
    assert rig.run(prompts, params) == roomy.run(prompts, params)
    runs_out = memory.page_bytes > 0  # without keys and values, pages take no memory
    assert (rig.scheduler.admission.preemptions > 0) == runs_out


def test_a_budget_that_does_not_hold_the_states_is_refused(checkpoint: GGUFCheckpoint) -> None:
    config = EngineConfig(slots=8, context=CONTEXT, kv_cache=1_000)
    with pytest.raises(ConfigError, match="or fewer slots"):
        load(checkpoint, config)


def test_snapshots_come_back_from_disk(
    checkpoint: GGUFCheckpoint, expected: list[Bits], tmp_path: Path
) -> None:
    for found in (0, 448):
        rig = Rig(checkpoint, tmp_path / "disk", slots=2, batch_tokens=32, state_every=EVERY)
        assert rig.one_by_one(PROMPTS[:1]) == expected[:1]
        assert rig.tier is not None
        assert rig.tier.stats().restored_tokens == found
        rig.close()


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("slots", [1, 4])
def test_guesses(checkpoint: GGUFCheckpoint, params: SamplingParams, slots: int) -> None:
    """Wrong guesses leave no trace in a state, nor in a snapshot."""
    settings = {"slots": slots, "batch_tokens": 50}
    plain = Rig(checkpoint, **settings, prefix_cache=False).run(PROMPTS, params)
    rig = Rig(checkpoint, **settings, outputs=plain, state_every=32)
    for _ in range(2):
        assert rig.run(PROMPTS, params) == plain
    assert any(rig.found)
    assert rig.speculator is not None
    assert rig.speculator.counts.drafted > rig.speculator.counts.accepted > len(PROMPTS)
    assert rig.again > 0


@pytest.mark.parametrize("device", [name for name in HERE if name != "cpu"])
def test_other_devices(checkpoint: GGUFCheckpoint, device: str) -> None:
    """Chunks, company, snapshots inside blocks of positions, and sequences that start again."""
    prompts, params = [TEXT[:70], TEXT[:75], TEXT[:33], TEXT[9:31]], replace(GREEDY, max_tokens=4)
    alone = Rig(checkpoint, slots=1, batch_tokens=99, prefix_cache=False, device=device)
    expected = alone.one_by_one(prompts, params)
    rig = Rig(checkpoint, slots=3, batch_tokens=21, state_every=32, device=device)
    for _ in range(2):
        assert rig.run(prompts, params) == expected
    assert any(found % 32 for found in rig.found), "the state at the end of a prompt"


@pytest.mark.parametrize("device", [name for name in HERE if name != "cpu"])
def test_guesses_on_other_devices(checkpoint: GGUFCheckpoint, device: str) -> None:
    settings = {"slots": 2, "device": device}
    prompts, params = [TEXT[:9], TEXT[5:11]], replace(GREEDY, max_tokens=9)
    plain = Rig(checkpoint, **settings).run(prompts, params)
    rig = Rig(checkpoint, **settings, outputs=plain)
    assert rig.run(prompts, params) == plain
    assert rig.again > 0


class LateGrammar:
    """Allows every token. Each mask waits for the gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def begin(self) -> LateGrammar:
        return self

    def next_mask(self, tokens: Tokens) -> bytes:
        assert self.gate.wait(PATIENCE)
        return b""

    def rewind(self, count: int) -> bool:
        return True


@pytest.mark.parametrize("guesses", [False, True])
def test_a_token_is_computed_again_from_the_state_before_it(
    checkpoint: GGUFCheckpoint, guesses: bool
) -> None:
    prompt, params = TEXT[:70], replace(GREEDY, max_tokens=9, seed=0)
    rig = Rig(checkpoint, slots=1, batch_tokens=32, prefix_cache=False)
    free = rig.one_by_one([prompt], params)
    if guesses:
        outputs = free
        rig = Rig(checkpoint, slots=1, batch_tokens=32, prefix_cache=False, outputs=outputs)
    grammar, said, late = LateGrammar(), [], 0
    rules = TokenRules(grammar=grammar)
    sequence = Sequence(9, params, list(prompt), len(prompt), frozenset(), rules=rules)
    rig.scheduler.add(sequence)
    while rig.scheduler.busy:
        if sequence.awaited is not None:
            grammar.gate.set()
            sequence.awaited.result(PATIENCE)
        result = execute(rig.executor, rig.scheduler.schedule())
        late += sum(isinstance(one, Deferred) for one in result.sampled)
        for event in rig.scheduler.update(result):
            assert isinstance(event.outcome, Sampled)
            said.append((event.outcome.token, event.outcome.logprob, event.outcome.top))
            grammar.gate.clear()
    assert len(said) == params.max_tokens
    assert late == len(said) or guesses
    assert (late < len(said)) == guesses
    assert [said] == free
