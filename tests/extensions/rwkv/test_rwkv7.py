"""RWKV-7: memory of a sequence, folders as they are published, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from folder_writer import write_safetensors
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.models.build import build
from heddle.sampling_params import SamplingParams
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.inspect import describe
from models.tiny.base import TOKENS
from models.tiny.rwkv7 import MODELS, TinyRwkv7

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.errors import HeddleError

MODEL = MODELS[0]


def test_a_sequence_takes_the_same_memory_at_any_length(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(MODEL.write_folder(tmp_path)) as checkpoint:
        executor = load(checkpoint, EngineConfig(slots=2, threads=1, context=100_000))
        memory = executor.memory
    assert memory.token_page_bytes == 0 < memory.snapshot_bytes
    matrices = MODEL.layers * MODEL.width * MODEL.head_dim
    assert memory.snapshot_bytes == 4 * (matrices + 2 * MODEL.layers * MODEL.width)
    executor.close()


def test_a_folder_is_served_with_its_vocabulary(tmp_path: Path) -> None:
    """Alone and in company, as the definition in NumPy says."""
    model = TinyRwkv7("served", 2, 2, 16, tied=False, vocabulary=300)
    folder = model.write_folder(tmp_path / "goose", eos_token_id=0)
    (folder / "tokenizer.json").unlink()
    lines = [f"{byte + 1} {bytes([byte])!r} 1\n" for byte in range(256)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with Engine.load(str(folder), EngineConfig(slots=3, threads=2, context=64)) as engine:
        prompt = engine.model.tokenizer.encode("geese")
        assert prompt == [byte + 1 for byte in b"geese"]
        streams = [engine.stream(prompt, params) for _ in range(3)]
        said = [[one.token for delta in stream for one in delta.tokens] for stream in streams]
    tokens = list(prompt)
    for _ in range(6):
        tokens.append(int(model.definition().logits(tokens)[-1].argmax()))
    assert said == [tokens[len(prompt) :]] * 3


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"attn": {"layers": [1]}}, UnsupportedModelError, r"attn {'layers': \[1\]} is not"),
        ({"norm_first": False}, UnsupportedModelError, "norm_first False is not supported"),
        ({"norm_bias": False}, UnsupportedModelError, "norm_bias False is not supported"),
        ({"hidden_act": "silu"}, UnsupportedModelError, "hidden_act 'silu' is not supported"),
        ({"value_dim": [32, 64]}, UnsupportedModelError, r"value_dim \[32, 64\] is not"),
        ({"head_dim": 8}, ModelFileError, "head_dim is 8; it must be a multiple of 16"),
        ({"head_dim": 48}, ModelFileError, "head_dim is 48, but the tensors|head_dim is 48; it"),
        ({"head_dim": None}, ModelFileError, "head_dim must be a positive whole number"),
        ({"a_low_rank_dim": None}, ModelFileError, r"low_rank_dim must be a positive whole number"),
        ({"a_low_rank_dim": 9}, ModelFileError, "a_lora.lora.0.weight has shape"),
        ({"num_hidden_layers": 1 << 40}, ModelFileError, "num_hidden_layers is 1099511627776"),
    ],
)
def test_other_models_are_refused(
    changes: dict[str, object], error: type[HeddleError], problem: str, tmp_path: Path
) -> None:
    folder = MODEL.write_folder(tmp_path, **changes)
    with pytest.raises(error, match=problem), HuggingFaceCheckpoint.open(folder) as checkpoint:
        build(checkpoint)
        load(checkpoint, EngineConfig(slots=1, threads=1, context=16)).close()


def test_the_inner_width_may_follow_from_the_ratio(tmp_path: Path) -> None:
    folder = MODEL.write_folder(tmp_path, intermediate_size=None, hidden_ratio=1.4)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        layer: Any = build(checkpoint).layers[0]
    assert layer.channel_mix.hidden == 64


@pytest.mark.parametrize(
    ("missing", "problem"),
    [("attn.x_w", "attn.x_w is missing"), ("attn.k_k", "attn.k_k is missing")],
)
def test_a_missing_vector_is_named(missing: str, problem: str, tmp_path: Path) -> None:
    folder = MODEL.write_folder(tmp_path)
    state = {name: one for name, one in MODEL.stored().items() if not name.endswith(missing)}
    write_safetensors(folder / "model.safetensors", state)
    with (
        pytest.raises(ModelFileError, match=problem),
        HuggingFaceCheckpoint.open(folder) as checkpoint,
    ):
        load(checkpoint, EngineConfig(slots=1, threads=1, context=16)).close()


def test_the_definition_forgets_as_the_paper_says() -> None:
    """A key of zeros changes nothing; the matrix then only decays."""
    state = MODEL.state()
    for name in state:
        if name.endswith("attn.k_proj.weight"):
            state[name] = np.zeros_like(state[name])
    model = MODEL.definition(state)
    model.matrices[:] = 1
    model.read(TOKENS[0])
    assert (model.matrices > np.exp(-np.exp(-0.5))).all()
    assert (model.matrices < 1).all()


def test_inspect_knows_the_size_of_the_state(tmp_path: Path) -> None:
    size = 4 * MODEL.layers * MODEL.width * (MODEL.head_dim + 2)
    for path in (MODEL.write(tmp_path / "goose.gguf"), MODEL.write_folder(tmp_path / "goose")):
        memory = describe(path).memory
        assert memory.state == size
        assert memory.kv_per_token == {"f16": 0, "q8_0": 0, "q4": 0}
