"""Ranks record steps with what they exchange. The bits are those of steps without recordings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from triton_device import DEVICE

from configs import configured
from heddle.sampling_params import SamplingParams
from models import rig
from models.tiny import llama
from prepared_children import prepare_children

import shortage  # isort: skip
from shortage import Shortage  # isort: skip
from heddle.extensions.torch import load  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path

if DEVICE.type != "cpu":
    pytest.skip("ranks would need several GPUs", allow_module_level=True)
import graphed_ranks  # isort: skip

pytestmark = pytest.mark.usefixtures("processes")

PROMPTS = [rig.TEXT[:9], rig.TEXT[3:6]]
PARAMS = SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True)
CONFIG = configured(
    slots=3,
    threads=1,
    kv_cache=1 << 20,
    batch_tokens=32,
    speculation="off",
    device="torch",
    tensor_parallel=2,
    rank_timeout=20,
)


@pytest.fixture
def shortages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Shortage]:
    """Two ranks with recordings. What lets rank 0 find no memory, and rank 1."""
    own, other = Shortage(tmp_path / "own"), Shortage(tmp_path / "other")
    monkeypatch.setenv("HEDDLE_TEST_SHORTAGE", str(tmp_path / "other"))
    prepare_children(monkeypatch, graphed_ranks, shortage)
    own.install(monkeypatch.setattr)
    graphed_ranks.install(monkeypatch.setattr, graphed_ranks.Prepared)
    return [own, other]


def loaded(path: Path, *, records: bool) -> Any:
    checkpoint = replace(llama.PLAIN, context=rig.CONTEXT).checkpoint(path)
    config = configured(CONFIG, cuda_graphs=records)
    executor: Any = load.load(checkpoint, config, samples_on_device=True, runs_ahead=True)
    if executor.warm_ups:
        executor.warm_up(lambda done: None)
    return executor


def rig_of(executor: Any, monkeypatch: pytest.MonkeyPatch) -> rig.Rig:
    """A new scheduler, with an empty cache."""
    monkeypatch.setattr(rig, "load_on", lambda *_: executor)
    return rig.Rig(None, slots=3, batch_tokens=32)


@pytest.mark.torch_slow
def test_ranks_give_the_same_bits_with_recordings_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortages: list[Shortage]
) -> None:
    """Alone, in company, and when a rank finds no memory for a step that is recorded."""
    eager = loaded(tmp_path, records=False)
    expected = rig_of(eager, monkeypatch).one_by_one(PROMPTS, PARAMS)
    eager.close()
    graphed = loaded(tmp_path, records=True)
    (graph,) = graphed._leader._program._graphs._graphs.values()
    replays = []
    repeat = graph._repeat
    graph._repeat = lambda: (replays.append(None), repeat())
    beside = rig_of(graphed, monkeypatch)
    assert beside.run(PROMPTS, PARAMS) == expected
    assert beside.steps_ahead > 0
    assert len(replays) > 3
    for one in shortages:
        again = rig_of(graphed, monkeypatch)
        one.order("send", range(1 << 20), 2)
        assert again.run(PROMPTS, PARAMS) == expected
        assert one.is_over
        assert again.scheduler.admission.preemptions
    assert not graphed._group.problem()
    graphed.close()


@pytest.mark.torch_slow
def test_no_rank_has_recordings_if_one_cannot_record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shortages: list[Shortage],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(graphed_ranks.REFUSED, "1")
    executor = loaded(tmp_path, records=True)
    assert "without CUDA graphs: recording failed: rank 1 failed" in caplog.text
    assert not executor._leader._program._graphs._graphs
    assert all(rig_of(executor, monkeypatch).run(PROMPTS[:1], PARAMS))
    assert not executor._group.problem()
    executor.close()
