"""Compressed positions and streams give the same bits whatever happens to a sequence's state.

Each prompt alone, in one chunk, is the reference: chunks, company, prefix hits, snapshots on disk,
thread counts and instruction levels must give its tokens and log probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from heddle import _native
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.rig import CONTEXT, TEXT, Bits, Rig
from models.tiny.deepseek_v4 import TinyDeepseekV4

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = TinyDeepseekV4(
    "exact",
    heads=6,
    kv_heads=1,
    head_dim=32,
    tied=False,
    window=40,
    long=48,
    top=CONTEXT,
    context=CONTEXT,
    expert_width=32,
    group_rank=32,
    query_rank=32,
)
CASES: tuple[dict[str, object], ...] = ({}, {"quantize": "q8_0", "kv_type": "q8_0"})
PROMPTS = [[*TEXT[:length], tail] for tail, length in enumerate((110, 110, 97, 20, 2), 1)]
EVERY = 32


class Case(NamedTuple):
    checkpoint: HuggingFaceCheckpoint
    settings: dict[str, object]
    expected: list[Bits]

    def rig(self, **settings: object) -> Rig:
        return Rig(self.checkpoint, **(self.settings | settings))


@pytest.fixture(scope="module", params=CASES, ids=["floats", "quantised"])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    folder = MODEL.write_folder(tmp_path_factory.mktemp("model") / "folder")
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        settings = request.param
        rig = Rig(checkpoint, slots=1, batch_tokens=CONTEXT, prefix_cache=False, **settings)
        expected = rig.one_by_one(PROMPTS)
        assert len({str(result) for result in expected}) == len(PROMPTS), "or they prove little"
        yield Case(checkpoint, settings, expected)


@pytest.mark.parametrize(("batch_tokens", "threads"), [(1, 1), (7, 3), (33, 1)])
def test_chunks_and_threads(case: Case, batch_tokens: int, threads: int) -> None:
    rig = case.rig(slots=1, batch_tokens=batch_tokens, threads=threads, prefix_cache=False)
    assert rig.one_by_one(PROMPTS[1:]) == case.expected[1:]


@pytest.mark.parametrize("isa", _native.isa_levels())
def test_every_instruction_level(case: Case, isa: str) -> None:
    rig = case.rig(slots=4, isa=isa, batch_tokens=50, prefix_cache=False)
    assert rig.run(PROMPTS) == case.expected


def test_company_cold_and_cached(case: Case) -> None:
    rig = case.rig(slots=4, batch_tokens=30, state_every=EVERY)
    for _ in range(2):
        assert rig.run(PROMPTS) == case.expected
    assert any(rig.found)


def test_snapshots_come_back_from_disk(case: Case, tmp_path) -> None:
    for found in (0, 96):
        rig = case.rig(disk=tmp_path / "disk", slots=2, batch_tokens=32, state_every=EVERY)
        assert rig.one_by_one(PROMPTS[:1]) == case.expected[:1]
        assert rig.tier is not None
        assert rig.tier.stats().restored_tokens == found
        rig.close()


def test_guesses_do_not_change_the_output(case: Case) -> None:
    rig = case.rig(outputs=case.expected, slots=2, state_every=EVERY)
    assert rig.run(PROMPTS) == case.expected
    assert rig.again > 0, "wrong guesses that were computed"
