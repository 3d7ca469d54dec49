"""Mamba, FalconMamba and Jamba: memory of a sequence, norms, parts of layers, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gguf_writer import write_gguf
from heddle.config import EngineConfig
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.hybrids.mamba_mixer import Mamba, Norms
from heddle.models.build import build
from heddle.models.feed_forward import GatedMLP
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny import falcon_mamba, jamba, mamba

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.errors import HeddleError
    from heddle.models.decoder import Decoder
    from models.tiny.base import TinyModel

ALONE, FALCON, JAMBA = mamba.MODELS[0], falcon_mamba.MODELS[0], jamba.MODELS[0]


def built(model: TinyModel, folder: Path, **changes: object) -> Decoder:
    with HuggingFaceCheckpoint.open(model.write_folder(folder, **changes)) as checkpoint:
        return build(checkpoint)


def mixer(model: Decoder) -> Mamba:
    found = model.layers[0].mixer
    assert isinstance(found, Mamba)
    return found


def test_a_sequence_takes_the_same_memory_at_any_length(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(ALONE.write_folder(tmp_path)) as checkpoint:
        executor = load(checkpoint, EngineConfig(slots=2, threads=1, context=100_000))
        memory = executor.memory
    assert memory.token_page_bytes == 0 < memory.snapshot_bytes
    executor.close()


def test_sizes_have_their_defaults(tmp_path: Path) -> None:
    absent = dict.fromkeys(("intermediate_size", "state_size", "conv_kernel"))
    found = mixer(built(ALONE, tmp_path, time_step_rank="auto", **absent))
    assert found == Mamba(32, channels=64, states=16, step_rank=2, taps=4, norms=None)


def test_norms_before_the_scan(tmp_path: Path) -> None:
    assert mixer(built(ALONE, tmp_path)).norms is None
    assert mixer(built(FALCON, tmp_path, mixer_rms_eps=0.25)).norms == Norms(0.25, stored=False)
    assert mixer(built(FALCON, tmp_path, mixer_rms_eps=None)).norms == Norms(1e-6, stored=False)
    assert mixer(built(JAMBA, tmp_path, rms_norm_eps=0.5)).norms == Norms(0.5, stored=True)


def test_a_single_expert_is_a_dense_part(tmp_path: Path) -> None:
    found = built(jamba.MODELS[1], tmp_path, num_experts_per_tok=2)
    assert [layer.mlp for layer in found.layers] == [GatedMLP(32, 48, "silu")] * 4


def test_norms_of_jamba_are_required(tmp_path: Path) -> None:
    dropped = "blk.2.ssm_dt_norm.weight"
    kept = [tensor for tensor in JAMBA.tensors() if tensor.name != dropped]
    path = write_gguf(tmp_path / "tiny.gguf", JAMBA.metadata(), kept)
    with (
        GGUFCheckpoint.open(path) as checkpoint,
        pytest.raises(ModelFileError, match=f"{dropped} is missing"),
    ):
        load(checkpoint, EngineConfig(slots=1, threads=1))


@pytest.mark.parametrize(
    ("model", "changes", "error", "problem"),
    [
        (ALONE, {"hidden_act": "relu"}, UnsupportedModelError, "hidden_act 'relu'"),
        (ALONE, {"conv_kernel": 1}, ModelFileError, "conv_kernel is 1; a convolution of at least"),
        (ALONE, {"state_size": 1 << 20}, ModelFileError, "state_size is 1048576, but the tensors"),
        (ALONE, {"state_size": -1}, ModelFileError, "state_size must be a positive whole"),
        (ALONE, {"time_step_rank": "many"}, ModelFileError, "time_step_rank must be a positive"),
        (ALONE, {"time_step_rank": 1 << 20}, ModelFileError, "time_step_rank is 1048576, but"),
        (
            ALONE,
            {"intermediate_size": None, "expand": 1e9},
            ModelFileError,
            "expand must be a factor from 0 to 65536",
        ),
        (JAMBA, {"mamba_expand": 0}, ModelFileError, "mamba_expand must be a positive whole"),
        (JAMBA, {"mamba_expand": 99}, ModelFileError, "mamba_expand is 3168, but the tensors"),
        (JAMBA, {"attn_layer_period": 0}, ModelFileError, "attn_layer_period must be a positive"),
        (JAMBA, {"num_experts_per_tok": 9}, ModelFileError, "num_experts_per_tok is 9, but"),
    ],
)
def test_wrong_hyperparameters_are_refused(
    model: TinyModel,
    changes: dict[str, object],
    error: type[HeddleError],
    problem: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=problem):
        built(model, tmp_path, **changes)
