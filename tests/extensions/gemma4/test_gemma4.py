"""Values that gemma4.py reads from a checkpoint, and its exactness; test_logits.py tests logits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from window_pages import windows_of

from folder_writer import write_safetensors
from heddle import _native
from heddle.config import EngineConfig
from heddle.errors import ConfigError, ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.state import KvShape, Pages, Shared, Window, pages_for
from heddle.step import Chunk, StepPlan
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.attentions import attentions
from models.tiny.base import TOKENS
from models.tiny.gemma4 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.models.decoder import Decoder

SHARED, DENSE, SAME, EXPERTS = MODELS


def built(folder: Path) -> Decoder:
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        return build(checkpoint)


def test_layers_keep_pages_of_their_shape_or_read_those_of_another(tmp_path: Path) -> None:
    model = build(SHARED.checkpoint(tmp_path))
    near, far = Window(4, KvShape(3, 16)), Pages(KvShape(3, 32))
    expected = [near, near, far, near, near, far, Shared(4), Shared(4), Shared(5)]
    assert [kind for layer in range(9) for kind in model.state(layer)] == expected


def test_a_page_file_has_the_pages_of_both_shapes(tmp_path: Path) -> None:
    executor = load(SHARED.checkpoint(tmp_path), EngineConfig(slots=1, threads=1, context=64))
    of_head = 2 * 2 * 32  # keys and values, 2 bytes, 32 tokens
    assert executor.memory.page_bytes == 2 * 3 * 32 * of_head
    (window,) = executor.memory.windows
    assert window.page_bytes == 4 * 3 * 16 * of_head
    content = np.arange(executor.page_bytes, dtype=np.uint32).astype(np.uint8)
    executor.write_page(1, content.data, [0])
    assert executor.read_page(1, [0]) == content.data
    executor.close()


def test_folders_with_the_keys_of_either_release_are_the_same_model(tmp_path: Path) -> None:
    """`transformers` 5 writes `per_layer_config`; the published folders have keys by kind."""
    old = built(SAME.write_folder(tmp_path / "old"))
    keys: dict[str, Any] = {"global_head_dim": None, "num_global_key_value_heads": None}
    keys["per_layer_config"] = {"2": {"head_dim": 32, "num_key_value_heads": 1}}
    assert built(SAME.write_folder(tmp_path / "new", **keys)) == old
    wrong = {"per_layer_config": [1]}
    with pytest.raises(ModelFileError, match="per_layer_config must be an object"):
        built(SAME.write_folder(tmp_path / "wrong", **wrong))


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"layer_types": None, "global_head_dim": None}
    keys |= {"num_hidden_layers": 8, "rope_parameters": None, "rope_theta": 1e6}
    # No size may be larger than the largest tensor's.
    model = built(replace(DENSE, vocabulary=512).write_folder(tmp_path, **keys))
    assert [one.spec.window for one in attentions(model)] == [4] * 5 + [0, 4, 0]
    assert [one.spec.head_dim for one in attentions(model)] == [16] * 5 + [512, 16, 512]


def test_only_a_share_of_the_pairs_of_global_layers_turns(tmp_path: Path) -> None:
    near, _, far, *_ = (one.rope for one in attentions(built(DENSE.write_folder(tmp_path))))
    assert near is not None
    assert far is not None
    assert (near.dim, near.factors) == (16, ())
    assert far.factors == (1.0,) * 4 + (np.inf,) * 12


def test_the_text_part_of_a_model_with_experts_that_sees_images(tmp_path: Path) -> None:
    folder = EXPERTS.write_folder(tmp_path)
    text = EXPERTS.config() | {"use_bidirectional_attention": "vision"}
    config = {"model_type": "gemma4", "text_config": text, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    named = {
        name.replace("model.", "model.language_model.", 1): values
        for name, values in EXPERTS.state().items()
    }
    images = {"model.vision_tower.patch_embedder.weight": np.zeros((2, 2), np.float32)}
    write_safetensors(folder / "model.safetensors", named | images)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, EXPERTS.expected_logits(), rtol=0, atol=4e-5)


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"num_kv_shared_layers": 6}, ModelFileError, "num_kv_shared_layers must be less than"),
        ({"num_kv_shared_layers": 4}, ModelFileError, "leaves no layer whose keys layer 2 can"),
        ({"num_key_value_heads": 4}, ModelFileError, "num_key_value_heads is 4, which does not"),
        ({"hidden_activation": "silu"}, UnsupportedModelError, "'silu' is not supported"),
        (
            {"use_bidirectional_attention": "all"},
            UnsupportedModelError,
            "use_bidirectional_attention .*attention to both sides is not supported",
        ),
        ({"num_hidden_layers": "six"}, ModelFileError, "num_hidden_layers must be a positive"),
        ({"layer_types": ["full_attention"]}, ModelFileError, "must have 6 entries"),
        (
            {"num_kv_shared_layers": 3, "per_layer_config": {"2": {"head_dim": 32}}},
            ModelFileError,
            "num_kv_shared_layers makes layer 5 read heads of another shape",
        ),
        ({"model_type": "gemma4_assistant"}, UnsupportedModelError, "'gemma4_assistant' is not"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=problem):
        built(DENSE.write_folder(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        (
            {"gemma4.attention.value_length_swa": 8},
            UnsupportedModelError,
            "value_length: values of another width than keys",
        ),
        ({"gemma4.rope.dimension_count_swa": 18}, ModelFileError, "dimension_count_swa must be"),
        (
            {"gemma4.attention.head_count_kv": np.array([3, 3], np.int32)},
            ModelFileError,
            "head_count_kv must have 6 entries",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_name(
    changes: dict[str, object], error: type[Exception], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=problem):
        build(DENSE.checkpoint(tmp_path, changes))


def test_a_kv_type_must_fit_the_heads_of_every_layer(tmp_path: Path) -> None:
    wide = replace(DENSE, global_dim=48)
    with pytest.raises(ConfigError, match="this model's heads have 16"):
        load(wide.checkpoint(tmp_path), EngineConfig(kv_type="q8_0", context=64))
    wide = replace(DENSE, head_dim=32, global_dim=48)
    with pytest.raises(ConfigError, match="this model's heads have 48"):
        load(wide.checkpoint(tmp_path), EngineConfig(kv_type="q8_0", context=64))


@pytest.mark.parametrize("model", [SHARED, SAME], ids=str)
def test_bits_are_the_same_at_every_level_and_thread_count(model: Any, tmp_path: Path) -> None:
    """Beyond 256 positions, threads split the attention of a single token."""
    context = 320
    checkpoint = replace(model, context=context).checkpoint(tmp_path)
    tokens = [(7 * i * i + 3 * i) % 31 for i in range(context)]
    ends = [300, 301, 302]

    def logits(isa: str, threads: int, parts: list[int]) -> np.ndarray:
        config = EngineConfig(slots=1, threads=threads, isa=isa, batch_tokens=context)
        executor = load(checkpoint, config)
        rows, start = {}, 0
        for end in parts:
            pages, windows = range(pages_for(end)), windows_of(executor.memory, start, end)
            chunk = Chunk(0, start, tokens[start:end], pages, sample=True, windows=windows)
            rows[end] = executor.logits(StepPlan(bindings=(), chunks=(chunk,)))
            start = end
        executor.close()
        return np.concatenate([rows[end] for end in ends])

    expected = logits("portable", 1, ends)
    for isa in _native.isa_levels():
        assert np.array_equal(logits(isa, 3, [100, 290, *ends]), expected), isa
