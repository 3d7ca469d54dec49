"""The text parts of models that see images, in the forms that their folders have."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest

from folder_writer import write_safetensors
from heddle.errors import ModelFileError
from heddle.extensions.reference.model import ReferenceModel
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny import lfm2, llama, llama4, qwen2, qwen3
from models.tiny.base import BASE, TOKENS
from models.tiny.qwen2_vl import MODELS as QWEN2
from models.tiny.qwen3_vl import MODELS as QWEN3

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.base import TinyModel
    from models.tiny.qwen2_vl import TinyQwen2VL

QWEN3_MOE = QWEN3[1]


@pytest.mark.parametrize("model", QWEN2, ids=str)
def test_the_keys_of_both_parts_may_be_in_one_object(
    model: TinyQwen2VL, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The folders of 2024: tensors have the names of a model without eyes, beside `visual`."""
    rope = {"type": "mrope", "mrope_section": [2, 3, 3]}
    config = model.text_config | {"model_type": model.whole, "vision_config": model.vision}
    del config["rope_parameters"]
    folder = model.write_folder(tmp_path)
    config |= {"rope_scaling": rope, "rope_theta": BASE}
    (folder / "config.json").write_text(json.dumps(config))
    eyes = {"visual.merger.mlp.0.weight": np.zeros((2, 2), np.float32)}
    write_safetensors(folder / "model.safetensors", model.state() | eyes)
    with (
        caplog.at_level(logging.INFO, "heddle"),
        HuggingFaceCheckpoint.open(folder) as checkpoint,
    ):
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, model.expected_logits(), rtol=0, atol=4e-5)
    assert "1 tensors beside the text model are not used: visual" in caplog.text


def test_a_folder_without_other_parts_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "heddle"),
        HuggingFaceCheckpoint.open(QWEN2[1].write_folder(tmp_path)),
    ):
        assert "not used" not in caplog.text


def test_experts_may_lie_one_by_one(tmp_path: Path) -> None:
    """Quantisers write a matrix for each expert."""
    folder = QWEN3_MOE.write_folder(tmp_path)
    state = {QWEN3_MOE.folder_name(name): one for name, one in QWEN3_MOE.state().items()}
    write_safetensors(folder / "model.safetensors", state)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, QWEN3_MOE.expected_logits(), rtol=0, atol=4e-5)


@pytest.mark.parametrize("shape", [(7, 640), (7, 32, 21)])
def test_a_stack_of_another_shape_is_named(shape: tuple[int, ...], tmp_path: Path) -> None:
    label = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    folder = QWEN3_MOE.write_folder(tmp_path)
    state = {QWEN3_MOE.folder_name(name): one for name, one in QWEN3_MOE.stored().items()}
    write_safetensors(folder / "model.safetensors", state | {label: np.zeros(shape, np.float32)})
    with pytest.raises(ModelFileError, match=r"gate_up_proj has shape .*\(experts, columns, rows"):
        HuggingFaceCheckpoint.open(folder)


@pytest.mark.parametrize(
    ("whole", "key", "base", "model"),
    [
        ("llava", "text_config", "language_model.model.", llama.PLAIN),
        ("smolvlm", "text_config", "model.text_model.", llama.PLAIN),
        ("internvl", "text_config", "language_model.model.", qwen2.MODELS[1]),
        ("internvl_chat", "llm_config", "language_model.model.", qwen3.MODELS[1]),
        ("lfm2_vl", "text_config", "model.language_model.", lfm2.MODELS[0]),
        ("llama4", "text_config", "language_model.model.", llama4.MODELS[0]),
    ],
)
def test_a_whole_model_may_have_any_known_text_model(
    whole: str, key: str, base: str, model: TinyModel, tmp_path: Path
) -> None:
    """LLaVA and Pixtral, SmolVLM, InternVL, LFM2-VL, Llama 4."""
    folder = model.write_folder(tmp_path)
    config = {"model_type": whole, key: model.config(), "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    named = {name.replace("model.", base, 1): one for name, one in model.stored().items()}
    output = named.pop("lm_head.weight", None)
    if output is not None:
        named["language_model." * base.startswith("language") + "lm_head.weight"] = output
    write_safetensors(folder / "model.safetensors", named)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, model.expected_logits(), rtol=0, atol=4e-5)


def test_a_text_model_without_a_name_has_that_of_the_whole(tmp_path: Path) -> None:
    model = QWEN2[1]
    folder = model.write_folder(tmp_path)
    config = model.config()
    config["text_config"] = {k: v for k, v in model.text_config.items() if k != "model_type"}
    (folder / "config.json").write_text(json.dumps(config))
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        assert checkpoint.architecture == model.architecture
