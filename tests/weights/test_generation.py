"""Sampling parameters that the files of a model recommend."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gguf_writer import write_gguf
from heddle import EngineConfig, SamplingParams
from heddle.errors import ModelFileError
from heddle.loading.load import load_model
from heddle.sampling_params import Stage
from heddle.weights.catalog import ALIASES, Part, Recipe
from heddle.weights.formats import open_checkpoint
from heddle.weights.inspect import describe
from models.tiny.llama import PLAIN
from tiny_hub import TINY

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.weights.generation import Recommended

ONE_THREAD: dict[str, Any] = {"slots": 1, "threads": 1, "kv_cache": 1 << 20}


def folder(path: Path, generation: dict[str, object] | None) -> Path:
    PLAIN.write_folder(path / "model")
    if generation is not None:
        (path / "model" / "generation_config.json").write_text(json.dumps(generation))
    return path / "model"


def gguf(path: Path, **keys: object) -> Path:
    sampling = {f"general.sampling.{key}": value for key, value in keys.items()}
    return write_gguf(path / "model.gguf", PLAIN.metadata() | sampling, PLAIN.tensors())


def recommended(path: Path) -> Recommended:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.recommended()


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, {}),
        ({"eos_token_id": [1, 2], "max_length": 20, "top_k": None}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0},
        ),
        ({"temperature": 1, "typical_p": 0.5}, {"temperature": 1.0, "typical_p": 0.5}),
        ({"do_sample": False, "temperature": 0.6, "top_k": 5}, {"temperature": 0.0}),
        (
            {"do_sample": False, "repetition_penalty": 1.05},
            {"temperature": 0.0, "repetition_penalty": 1.05},
        ),
    ],
)
def test_generation_config_gives_the_parameters_of_a_folder(
    tmp_path: Path, generation: dict[str, object] | None, expected: dict[str, object]
) -> None:
    found = recommended(folder(tmp_path, generation)).checked()
    assert found == expected
    SamplingParams(**found)  # type: ignore[arg-type]


def test_sampling_keys_give_the_parameters_of_a_gguf_file(tmp_path: Path) -> None:
    path = gguf(
        tmp_path,
        sequence="penalties;top_k;temperature",
        top_k=40,
        top_p=0.95,
        temp=0.7,
        penalty_last_n=64,
        penalty_repeat=1.1,
        mirostat=2,
        mirostat_tau=4.0,
    )
    assert recommended(path).checked() == {
        "samplers": (Stage.PENALTIES, Stage.TOP_K, Stage.TEMPERATURE),
        "top_k": 40,
        "top_p": 0.95,  # not 0.949999988079071, which float32 has
        "temperature": 0.7,
        "repeat_last_n": 64,
        "repetition_penalty": 1.1,
        "mirostat": 2,
        "mirostat_tau": 4.0,
    }


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"top_p": 1.5}, r"generation_config.json: top_p must be .* got 1.5.*--generation-config"),
        ({"top_k": "many"}, "top_k must be an integer, got 'many'"),
        ({"temperature": [1]}, "temperature must be a finite number"),
    ],
)
def test_a_wrong_value_names_the_file_and_the_key(
    tmp_path: Path, generation: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        recommended(folder(tmp_path, generation)).checked()


def test_a_wrong_value_of_a_gguf_file_names_its_key(tmp_path: Path) -> None:
    path = gguf(tmp_path, mirostat=1)
    with pytest.raises(
        ModelFileError, match=r"model.gguf: general.sampling.mirostat must"
    ) as error:
        recommended(path).checked()
    assert error.value.field == "general.sampling.mirostat"
    assert describe(path).sampling == {"mirostat": 1}  # a description refuses nothing


def test_a_loaded_model_has_the_parameters_unless_they_are_turned_off(tmp_path: Path) -> None:
    path = folder(tmp_path, {"temperature": 0.6, "top_k": 20})
    model = load_model(path, EngineConfig(**ONE_THREAD))
    try:
        assert model.sampling_params() == SamplingParams(temperature=0.6, top_k=20)
        assert model.sampling_params(top_k=0, seed=1) == SamplingParams(temperature=0.6, seed=1)
    finally:
        model.close()
    (path / "generation_config.json").write_text('{"temperature": "warm"}')
    with pytest.raises(ModelFileError, match="temperature must be"):
        load_model(path, EngineConfig(**ONE_THREAD))
    model = load_model(path, EngineConfig(generation_config="none", **ONE_THREAD))
    assert model.sampling_params() == SamplingParams()
    model.close()


def test_a_model_of_the_catalogue_has_the_parameters_of_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part("tiny==1.0", "tiny.gguf")
    row = Recipe("tiny", (part,), "tiny.gguf", sampling={"temperature": 0.2, "top_p": 0.9})
    monkeypatch.setitem(ALIASES, "tiny", row)
    monkeypatch.setenv("HEDDLE_HOME", str(tmp_path))
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "tiny.gguf").write_bytes(TINY)
    with closing(load_model("tiny", EngineConfig(**ONE_THREAD))) as model:
        assert model.sampling_defaults == row.sampling
    plain = EngineConfig(generation_config="none", **ONE_THREAD)
    with closing(load_model("tiny", plain)) as model:
        assert model.sampling_defaults == {}
    own = describe(gguf(tmp_path, temp=0.6), sampling=row.sampling).sampling
    assert own == {"temperature": 0.6, "top_p": 0.9}  # a value of the file goes before


def test_the_description_shows_parameters_and_end_tokens(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "eos_token_id": [PLAIN.vocabulary - 1, 2]}
    found = describe(folder(tmp_path, generation))
    assert found.sampling == {"temperature": 0.6}
    assert found.end_tokens == {2: "C", PLAIN.vocabulary - 1: "<|endoftext|>"}
    tokens = {"tokenizer.ggml.tokens": ["a", "b", "<end>"], "tokenizer.ggml.eos_token_id": 2}
    path = write_gguf(tmp_path / "named.gguf", tokens | {"tokenizer.ggml.eot_token_id": 9})
    assert describe(path).end_tokens == {2: "<end>", 9: None}
    odd = {"tokenizer.ggml.tokens": np.ones(3, np.int32), "tokenizer.ggml.eos_token_id": 1}
    assert describe(write_gguf(tmp_path / "odd.gguf", odd)).end_tokens == {1: None}
