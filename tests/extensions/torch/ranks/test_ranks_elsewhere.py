"""Ranks that may be on other machines meet at a port, and may have other copies of the files."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from configs import configured
from heddle.errors import EngineFailedError, ModelFileError
from heddle.executors.devices import loader
from heddle.extensions.processes.children import places
from heddle.extensions.processes.children.versions import files_digest, open_same
from heddle.extensions.processes.load import load_in_process
from heddle.models.build import family_of
from heddle.sampling_params import SamplingParams
from heddle.step import Binding, Chunk, StepPlan
from heddle.weights.formats import open_checkpoint
from models.rig import Rig
from models.tiny import llama
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytest.importorskip("torch")

CONFIG = configured(
    device="torch", tensor_parallel=2, slots=2, kv_cache=1 << 20, threads=1, rank_timeout=20
)
PARAMS = SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True)
PROMPTS = [[(7 * i * i + 3 * i) % 31 + 1 for i in range(length)] for length in (70, 9)]


class Elsewhere:
    """Starts ranks on this machine as if it were another one."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start(self, module: str, names: Sequence[str]) -> list[places.Started]:
        self.asked += names
        return [places.start_here(module, name) for name in names]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, processes: list[Any]) -> Elsewhere:
    place = Elsewhere()
    monkeypatch.setattr(places, "_places", [])
    places.use_place(place)
    return place


def test_ranks_elsewhere_give_the_bits_of_ranks_here(
    tmp_path: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bits() -> Any:
        settings: dict[str, Any] = {"tensor_parallel": 2, "threads": 1, "kv_cache": 2 << 20}
        model = replace(llama.PLAIN, context=1024).checkpoint(tmp_path)
        rig = Rig(model, device="torch", **settings)
        found = rig.run(PROMPTS, PARAMS)
        rig.close()
        return found

    there = bits()
    assert elsewhere.asked == ["rank 1"]
    monkeypatch.setattr(places, "_places", [places._Here()])
    assert bits() == there


def test_a_rank_elsewhere_that_is_killed_fails_the_step(
    tmp_path: Path, elsewhere: Elsewhere, processes: list[Any]
) -> None:
    executor = loader("torch")(llama.PLAIN.checkpoint(tmp_path), CONFIG)
    binding = Binding(0, replace(PARAMS, seed=0), [1, 2], [])
    plan = StepPlan((binding,), (Chunk(0, 0, [1, 2], [0], True),))
    assert execute(executor, plan).sampled
    processes[0].kill()
    with pytest.raises(EngineFailedError, match=r"rank 1 \(process \d+\) was killed by signal 9"):
        execute(executor, plan)
    executor.close()


def test_a_replica_of_several_machines_loads_in_its_own_process(
    tmp_path: Path, elsewhere: Elsewhere, processes: list[Any]
) -> None:
    """The process of a device would start its ranks beside it."""
    config = configured(CONFIG, tensor_parallel=1)
    load = "heddle.extensions.torch.load:load"
    executor = load_in_process(load, llama.PLAIN.checkpoint(tmp_path), config)
    assert not processes
    executor.close()


def test_each_rank_elsewhere_has_a_gpu_of_its_own(elsewhere: Elsewhere) -> None:
    from heddle.extensions.torch.parallel import rank_devices

    assert rank_devices(configured(device="cuda", tensor_parallel=2)) == ["cuda:0", "cuda:0"]


def test_a_copy_of_the_files_may_have_other_times_and_no_other_content(tmp_path: Path) -> None:
    own = llama.PLAIN.write_folder(tmp_path / "own")
    copy = shutil.copytree(own, tmp_path / "copy")
    os.utime(copy / "model.safetensors", (1e9, 1e9))
    with open_checkpoint(own, None, family_of) as checkpoint:
        digest = files_digest(checkpoint, elsewhere=True)
    with open_same(str(copy), digest, elsewhere=True) as checkpoint:
        assert checkpoint.path == copy
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    expected = pytest.raises(ModelFileError, match=r"has other content on .* put the same files")
    with expected, open_same(str(copy), digest, elsewhere=True):
        pass
