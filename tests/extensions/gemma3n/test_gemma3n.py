"""What Gemma 3n reads from a checkpoint, and its exactness; test_logits.py tests its logits."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from window_pages import windows_of

from folder_writer import write_safetensors
from heddle import _native
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.gemma3n.gemma3n import Gemma3n, Gemma3nLayer
from heddle.extensions.gemma3n.sparse_mlp import SparseMLP
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.sampling_params import SamplingParams
from heddle.state import KvShape, Pages, Shared, Window, pages_for
from heddle.step import Chunk, StepPlan
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.attentions import attentions
from models.tiny.base import TOKENS
from models.tiny.gemma3n import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.models.decoder import Decoder
    from heddle.weights.checkpoint import Checkpoint

SHARED, THREE, FEW_ROWS = MODELS


def built(folder: Path) -> Decoder:
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        return build(checkpoint)


def cuts_of(model: Decoder) -> list[float | None]:
    """For each layer, from how many standard deviations on it keeps gates."""
    found: list[float | None] = []
    for layer in model.layers:
        assert isinstance(layer, Gemma3nLayer)
        found.append(round(layer.mlp.cut, 4) if isinstance(layer.mlp, SparseMLP) else None)
    return found


def test_the_last_layers_read_the_keys_of_others(tmp_path: Path) -> None:
    model = build(SHARED.checkpoint(tmp_path))
    near, far = Window(4, KvShape(2, 16)), Pages(KvShape(2, 16))
    expected = [near, near, far, Shared(1), Shared(1), Shared(2)]
    assert [kind for layer in range(6) for kind in model.state(layer)] == expected


def test_the_first_layers_cut_gates(tmp_path: Path) -> None:
    expected = [1.2816, 0.2533, None, None, None, None]
    assert cuts_of(build(SHARED.checkpoint(tmp_path))) == expected
    assert cuts_of(built(SHARED.write_folder(tmp_path / "folder"))) == expected


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    tiny = replace(SHARED, layers=12, shared=0, vocabulary=300, rank=64, input_width=256)
    names = ("altup_num_inputs", "altup_active_idx", "laurel_rank", "layer_types")
    names += ("hidden_size_per_layer_input", "activation_sparsity_pattern")  # type: ignore[assignment]
    names += ("final_logit_softcapping", "rope_parameters")  # type: ignore[assignment]
    folder = tiny.write_folder(tmp_path)
    config = {key: value for key, value in tiny.config().items() if key not in names}
    (folder / "config.json").write_text(json.dumps(config))
    model = built(folder)
    assert isinstance(model, Gemma3n)
    assert (model.streams.count, model.streams.active, model.inputs.width) == (4, 0, 256)
    assert [one.spec.window for one in attentions(model)] == [4, 4, 4, 4, 0] * 2 + [4, 4]
    assert [one.rope.base for one in attentions(model)[3:5] if one.rope] == [1e4, 1e6]
    assert model.logit_cap == 30
    assert cuts_of(model) == [1.6449] * 10 + [None] * 2


def test_a_file_of_a_model_of_few_layers_cuts_no_gates_by_itself(tmp_path: Path) -> None:
    keys = ("activation_sparsity_scale", "final_logit_softcapping")
    model = build(SHARED.checkpoint(tmp_path, {f"gemma3n.{key}": None for key in keys}))
    assert cuts_of(model) == [None] * 6
    assert model.logit_cap == 30


def test_feed_forward_layers_may_differ_in_width(tmp_path: Path) -> None:
    model = built(SHARED.write_folder(tmp_path, intermediate_size=[48, 48, 48, 48, 48, 96]))
    assert [getattr(layer.mlp, "hidden", 0) for layer in model.layers] == [48] * 5 + [96]


def test_eyes_and_ears_are_skipped_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = SHARED.write_folder(tmp_path)
    config = {"model_type": "gemma3n", "text_config": SHARED.config(), "audio_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    named = {
        name.replace("model.", "model.language_model.", 1): values
        for name, values in SHARED.state().items()
    }
    parts = ("audio_tower", "embed_audio", "embed_vision", "vision_tower")
    others = {f"model.{part}.first.weight": np.zeros((2, 2), np.float32) for part in parts}
    write_safetensors(folder / "model.safetensors", named | others)
    with (
        caplog.at_level(logging.INFO, "heddle"),
        HuggingFaceCheckpoint.open(folder) as checkpoint,
    ):
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    assert f"4 tensors beside the text model are not used: {', '.join(parts)}" in caplog.text
    np.testing.assert_allclose(logits, SHARED.expected_logits(), rtol=0, atol=4e-5)


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"altup_num_inputs": 1}, ModelFileError, "altup_num_inputs must be from 2 to 16, got 1"),
        ({"altup_num_inputs": 17}, ModelFileError, "altup_num_inputs must be from 2 to 16, got"),
        ({"altup_active_idx": 4}, ModelFileError, "altup_active_idx must be less than the 4"),
        ({"altup_correct_scale": False}, UnsupportedModelError, "altup_correct_scale false is"),
        ({"num_key_value_heads": 3}, ModelFileError, "num_key_value_heads is 3, which does not"),
        ({"num_kv_shared_layers": 6}, ModelFileError, "num_kv_shared_layers must be less than"),
        ({"hidden_activation": "silu"}, UnsupportedModelError, "'silu' is not supported"),
        ({"activation_sparsity_pattern": 0.9}, ModelFileError, "must be a list of numbers from 0"),
        ({"activation_sparsity_pattern": [1.0] * 6}, ModelFileError, "but not including, 1, got"),
        ({"activation_sparsity_pattern": [0.9]}, ModelFileError, "must have 6 entries, got"),
        ({"vocab_size_per_layer_input": 2**40}, ModelFileError, "embed_tokens_per_layer"),
        ({"laurel_rank": 63}, ModelFileError, "laurel.linear_left"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], problem: str, tmp_path: Path
) -> None:
    folder = SHARED.write_folder(tmp_path, **changes)
    with pytest.raises(error, match=problem), HuggingFaceCheckpoint.open(folder) as checkpoint:
        ReferenceModel(checkpoint)


@pytest.mark.parametrize(
    ("key", "value", "error", "problem"),
    [
        ("activation_sparsity_scale", np.zeros(5), ModelFileError, "must have 6 entries"),
        ("activation_sparsity_scale", np.full(6, np.inf), ModelFileError, "up to 100, got inf"),
        ("activation_sparsity_scale", np.full(6, np.nan), ModelFileError, "up to 100, got nan"),
        ("attention.value_length", 8, UnsupportedModelError, "another width than keys"),
        ("altup.num_inputs", 5, ModelFileError, "altup_router.weight has shape"),
    ],
)
def test_a_wrong_file_is_refused_by_name(
    key: str, value: object, error: type[Exception], problem: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(error, match=problem),
        SHARED.checkpoint(tmp_path, {f"gemma3n.{key}": value}) as checkpoint,
    ):
        ReferenceModel(checkpoint)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (None, r"model\.altup_projections\.0\.weight to .*2\.weight must be numbered from 0"),
        (np.zeros((32, 16), np.float32), "have one shape and type"),
    ],
)
def test_matrices_of_streams_that_differ_are_refused(
    wrong: np.ndarray | None, problem: str, tmp_path: Path
) -> None:
    folder, state = SHARED.write_folder(tmp_path), SHARED.state()
    del state["model.altup_projections.1.weight"]
    if wrong is not None:
        state["model.altup_projections.1.weight"] = wrong
    write_safetensors(folder / "model.safetensors", state)
    with pytest.raises(ModelFileError, match=problem):
        HuggingFaceCheckpoint.open(folder)


def test_an_engine_gives_the_same_tokens_alone_and_in_company(tmp_path: Path) -> None:
    folder = SHARED.write_folder(tmp_path / "tiny", "BF16")
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        reference, tokens = ReferenceModel(checkpoint), list(TOKENS)
        for _ in range(8):
            tokens.append(int(reference.logits(tokens, "f16")[-1].argmax()))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with Engine.load(str(folder), EngineConfig(slots=4, threads=2, context=48)) as engine:
        streams = [engine.stream(TOKENS, params) for _ in range(3)]
        said = [[one.token for delta in stream for one in delta.tokens] for stream in streams]
    assert said == [tokens[len(TOKENS) :]] * 3


def logits_of(
    checkpoint: Checkpoint, tokens: list[int], ends: list[int], parts: list[int], **settings: Any
) -> np.ndarray:
    """The logits after `ends`, computed by the native core in parts."""
    config = EngineConfig(slots=1, batch_tokens=len(tokens), **settings)
    executor = load(checkpoint, config)
    rows, start = {}, 0
    for end in parts:
        pages, windows = range(pages_for(end)), windows_of(executor.memory, start, end)
        chunk = Chunk(0, start, tokens[start:end], pages, sample=True, windows=windows)
        rows[end] = executor.logits(StepPlan(bindings=(), chunks=(chunk,)))
        start = end
    executor.close()
    return np.concatenate([rows[end] for end in ends])


def test_a_folder_and_a_file_give_the_same_bits(tmp_path: Path) -> None:
    """The table of inputs lacks two of the tokens; a folder says so, a file has them."""
    tokens, ends = TOKENS[:], [len(TOKENS)]
    settings: dict[str, Any] = {"threads": 1, "context": 48}
    with FEW_ROWS.checkpoint(tmp_path) as checkpoint:
        expected = logits_of(checkpoint, tokens, ends, ends, **settings)
    with HuggingFaceCheckpoint.open(FEW_ROWS.write_folder(tmp_path / "folder")) as checkpoint:
        found = logits_of(checkpoint, tokens, ends, [4, 7, *ends], **settings)
    assert {30, 31} < set(tokens)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("model", [SHARED, THREE], ids=str)
def test_bits_are_the_same_at_every_level_and_thread_count(model: Any, tmp_path: Path) -> None:
    """Beyond 256 positions, threads split the attention of a single token."""
    context = 320
    checkpoint = replace(model, context=context).checkpoint(tmp_path)
    tokens, ends = [(7 * i * i + 3 * i) % 31 for i in range(context)], [300, 301, 302]
    expected = logits_of(checkpoint, tokens, ends, ends, isa="portable", threads=1)
    for isa in _native.isa_levels():
        found = logits_of(checkpoint, tokens, ends, [100, 290, *ends], isa=isa, threads=3)
        assert np.array_equal(found, expected), isa
