"""Hugging Face folders: each tiny model gives the same results as from a GGUF file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from folder_writer import write_safetensors
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.errors import ModelFileError, ModelSourceError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.sampling_params import SamplingParams
from heddle.weights.formats import read_outline
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.attentions import attentions
from models.tiny import FOLDERS, MODELS, gemma3, gemma4, ministral3, qwen3, qwen3_moe
from models.tiny.base import TOKENS, TinyModel
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.models.decoder import Decoder

ALL = (*MODELS, *(model for models in FOLDERS.values() for model in models))
every_model = pytest.mark.parametrize("model", ALL, ids=str)


@every_model
def test_the_reference_agrees_with_transformers(model: TinyModel, tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(model.write_folder(tmp_path)) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, model.expected_logits(), rtol=0, atol=4e-5)


ENGINE_MODELS = (*(one.MODELS[0] for one in (qwen3, qwen3_moe, gemma3)), gemma4.MODELS[3])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("model", ENGINE_MODELS, ids=str)
def test_an_engine_generates_from_a_folder(model: TinyModel, dtype: str, tmp_path: Path) -> None:
    """Outputs equal the greedy reference, alone and in a batch."""
    folder = model.write_folder(tmp_path / "tiny", dtype)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        reference, tokens = ReferenceModel(checkpoint), list(TOKENS)
        for _ in range(8):
            tokens.append(int(reference.logits(tokens, "f16")[-1].argmax()))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with Engine.load(str(folder), EngineConfig(slots=4, threads=2, context=48)) as engine:
        assert engine.model.info.id == "tiny"
        streams = [engine.stream(TOKENS, params) for _ in range(3)]
        said = [[one.token for delta in stream for one in delta.tokens] for stream in streams]
        assert engine.model.file_state() == "unchanged"
        (folder / "config.json").write_text("{}")
        assert engine.model.file_state() == "changed"
    assert said == [tokens[len(TOKENS) :]] * 3


def test_shards_are_read_as_one_model(tmp_path: Path) -> None:
    folder = PLAIN.write_folder(tmp_path)
    split(folder, PLAIN)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        assert len(checkpoint.stamps) == 3
        np.testing.assert_allclose(
            ReferenceModel(checkpoint).logits(TOKENS), PLAIN.expected_logits(), atol=2e-5
        )
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelSourceError, match=r"the shard b\.safetensors is missing"):
        HuggingFaceCheckpoint.open(folder)


def split(folder: Path, model: TinyModel) -> None:
    """Move every second tensor to a second file, and write an index."""
    state = model.state()
    parts = {"a.safetensors": list(state)[::2], "b.safetensors": list(state)[1::2]}
    for file, names in parts.items():
        write_safetensors(folder / file, {name: state[name] for name in names})
    places = {name: file for file, names in parts.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "model.safetensors").unlink()


def test_a_tensor_in_two_shards_or_a_shard_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = PLAIN.write_folder(tmp_path)
    split(folder, PLAIN)
    write_safetensors(folder / "b.safetensors", PLAIN.state())
    with pytest.raises(ModelFileError, match="both have a tensor model"):
        HuggingFaceCheckpoint.open(folder)
    index = {"weight_map": {"x": "../a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="which is not a plain file name"):
        HuggingFaceCheckpoint.open(folder)


def test_pickled_weights_are_refused_with_a_remedy(tmp_path: Path) -> None:
    folder = PLAIN.write_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"a pickle.*save_pretrained\('NEW'\)"):
        HuggingFaceCheckpoint.open(folder)
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model.bin, a pickle"):
        Engine.load(str(folder / "pytorch_model.bin"))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelSourceError, match="fetch the whole folder"):
        HuggingFaceCheckpoint.open(folder)


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        (
            {"model_type": "mamba3"},
            UnsupportedModelError,
            "'mamba3' is not supported; the nearest name is mamba; supported: .*qwen3",
        ),
        ({"model_type": None}, ModelFileError, "model_type must be a string"),
        ({"num_hidden_layers": None}, ModelFileError, "num_hidden_layers must be a positive"),
        ({"num_hidden_layers": 3}, ModelFileError, "model.layers.2.input_layernorm.weight is miss"),
        ({"hidden_size": 30}, ModelFileError, "model.embed_tokens.weight has shape"),
        ({"hidden_act": "relu"}, UnsupportedModelError, "hidden_act 'relu' is not supported"),
        ({"hidden_act": "gelu_pytorch_tanh"}, UnsupportedModelError, "hidden_act 'gelu'"),
        ({"tie_word_embeddings": False}, ModelFileError, "lm_head.weight is missing"),
        (
            {"rope_parameters": {"rope_type": "ntk", "rope_theta": 1e4}},
            UnsupportedModelError,
            "rope_parameters.rope_type 'ntk'",
        ),
        ({"sliding_window": 4, "layer_types": ["a"]}, UnsupportedModelError, "layer_types 'a'"),
        (
            {"sliding_window": 4, "layer_types": ["sliding_attention"]},
            ModelFileError,
            "layer_types must have 2 entries",
        ),
        (
            {"sliding_window": 4, "layer_types": ["sliding_attention"] * 3},
            ModelFileError,
            "layer_types must have 2 entries",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], problem: str, tmp_path: Path
) -> None:
    folder = PLAIN.write_folder(tmp_path, **changes)
    with pytest.raises(error, match=problem), HuggingFaceCheckpoint.open(folder) as checkpoint:
        ReferenceModel(checkpoint)


@pytest.mark.parametrize(
    ("base", "head"),
    [("language_model.model.", "language_model.lm_head"), ("model.language_model.", "lm_head")],
)
def test_the_text_part_of_a_model_that_sees_images_is_read(
    base: str, head: str, tmp_path: Path
) -> None:
    model = replace(ministral3.MODELS[0], tied=False)
    folder = model.write_folder(tmp_path)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        expected = ReferenceModel(checkpoint).logits(TOKENS)
    config = {"model_type": "mistral3", "text_config": model.config(), "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    named = {
        name.replace("model.", base, 1) if name.startswith("model.") else f"{head}.weight": values
        for name, values in model.state().items()
    }
    images = {"vision_tower.patch_conv.weight": np.zeros((2, 2), np.float32)}
    write_safetensors(folder / "model.safetensors", named | images)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        assert checkpoint.architecture == "ministral3"
        np.testing.assert_array_equal(ReferenceModel(checkpoint).logits(TOKENS), expected)


def test_an_unknown_architecture_is_named_before_anything_else(tmp_path: Path) -> None:
    folder = PLAIN.write_folder(tmp_path, model_type="hyena", hidden_act="sine", layer_types=["a"])
    (folder / "model.safetensors").unlink()
    problem = r"model_type 'hyena' is not supported; supported: .*granite, .*olmo3"
    with pytest.raises(UnsupportedModelError, match=problem):
        Engine.load(str(folder))


def test_an_unknown_dtype_is_named_with_its_tensor(tmp_path: Path) -> None:
    folder = PLAIN.write_folder(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32", "shape": [32]', b'"U32", "shape": [32]'))
    with pytest.raises(UnsupportedModelError, match="weight of dtype U32 is not supported"):
        HuggingFaceCheckpoint.open(folder)


def built(folder: Path) -> Decoder:
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        return build(checkpoint)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 4}, [4, 4]),
        ({"model_type": "mistral", "sliding_window": None}, [0, 0]),
        ({"model_type": "qwen2", "sliding_window": 4, "use_sliding_window": False}, [0, 0]),
        ({"model_type": "qwen2", "sliding_window": 4, "max_window_layers": 1}, [0, 4]),
        (
            {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
            [4, 0],
        ),
    ],
)
def test_the_configuration_decides_which_layers_have_windows(
    changes: dict[str, Any], windows: list[int], tmp_path: Path
) -> None:
    model = built(PLAIN.write_folder(tmp_path, **changes))
    assert [one.spec.window for one in attentions(model)] == windows


def test_keys_of_older_transformers_are_read(tmp_path: Path) -> None:
    old: dict[str, Any] = {"rope_parameters": None, "rope_theta": 500.0}
    old["rope_scaling"] = {"type": "linear", "factor": 4.0}
    rope = attentions(built(PLAIN.write_folder(tmp_path, **old)))[0].rope
    assert (rope.base, set(rope.factors)) == (500.0, {4.0})


def test_inspection_describes_a_folder(tmp_path: Path) -> None:
    outline = read_outline(PLAIN.write_folder(tmp_path, "BF16"))
    assert (outline.format, outline.architecture, outline.name) == ("safetensors", "llama", None)
    assert {kind.name for kind, _, _ in outline.tensors} == {"BF16"}
    assert outline.metadata["hidden_size"] == PLAIN.width
