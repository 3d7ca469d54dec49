"""EmbeddingGemma: embeddings as `transformers` computes them, one step for each text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from folder_writer import write_safetensors
from heddle import LLM, EmbeddingParams, EngineConfig, InvalidRequestError, Pooling, SamplingParams
from heddle.engine.engine import Engine
from heddle.errors import ContextLengthError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny import llama, qwen3
from models.tiny_encoder import MODELS, PROMPTS, TOKENS, TinyEmbeddingGemma, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

every_model = pytest.mark.parametrize("model", MODELS, ids=str)
OTHERS = [TOKENS[::-1], TOKENS[:7], [5], TOKENS[3:40]]
CONFIG = EngineConfig(slots=3, threads=2, context=48)
POOLINGS = ("mean", "cls", "last")


def stored(model: TinyEmbeddingGemma, form: str, folder: Path) -> str:
    if form == "gguf":
        return str(model.write(folder / "tiny.gguf"))
    return str(model.write_folder(folder / "tiny"))


@every_model
@pytest.mark.parametrize("form", ["gguf", "folder"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_embeddings_agree_with_transformers(
    model: TinyEmbeddingGemma, form: str, device: str, tmp_path: Path
) -> None:
    """The cache keeps keys and values in f16."""
    with Engine.load(stored(model, form, tmp_path), replace(CONFIG, device=device)) as engine:
        vector = np.array(engine.embed(TOKENS).vector)
    np.testing.assert_allclose(vector, model.expected_embedding(), atol=1e-3)


@every_model
def test_a_vector_has_the_same_bits_in_company(model: TinyEmbeddingGemma, tmp_path: Path) -> None:
    """Whatever the limit of a step, the threads and the instruction level."""
    path = stored(model, "gguf", tmp_path)
    found = []
    for settings in ({}, {"batch_tokens": 7}, {"threads": 1}, {"isa": "portable"}):
        with LLM(path, replace(CONFIG, **settings)) as llm:
            found += [llm.embed([TOKENS, *OTHERS])[0], llm.embed([*OTHERS, TOKENS])[-1]]
            found.append(llm.embed([TOKENS])[0])
    for vector in found[1:]:
        np.testing.assert_array_equal(vector, found[0])


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine.load(stored(MODELS[0], "folder", tmp_path), CONFIG)


def test_a_text_leaves_nothing_for_others(engine: Engine) -> None:
    usages = [engine.embed(TOKENS, EmbeddingParams(pooling)).usage for pooling in POOLINGS]  # type: ignore[arg-type]
    assert [usage.cached_tokens for usage in usages] == [0, 0, 0]
    assert engine.snapshot().prefix_cache.nodes == 0
    engine.close()


def test_an_encoder_generates_no_text(engine: Engine) -> None:
    for params in (SamplingParams(max_tokens=1), SamplingParams(max_tokens=0, prompt_logprobs=1)):
        with pytest.raises(InvalidRequestError, match="is an encoder: it makes embeddings"):
            engine.complete(TOKENS, params)
    engine.close()


def test_a_text_may_fill_the_context(engine: Engine) -> None:
    engine.embed([3] * 48)
    with pytest.raises(ContextLengthError, match="Send at most 48"):
        engine.embed([3] * 49)
    engine.close()


def test_prompts_of_the_folder_go_before_texts(engine: Engine) -> None:
    """The default prompt of this folder is "document"."""
    encode = engine.model.tokenizer.encode
    for name, text in ((None, PROMPTS["document"]), *PROMPTS.items()):
        named = engine.embed("DE", EmbeddingParams(prompt_name=name))
        assert named.vector == engine.embed(encode(text + "DE")).vector
    with pytest.raises(InvalidRequestError, match=r"no prompt named 'x'; it has: document, query"):
        engine.embed("DE", EmbeddingParams(prompt_name="x"))
    with pytest.raises(InvalidRequestError, match="goes with a text, not with token ids"):
        engine.embed([3], EmbeddingParams(prompt_name="query"))
    engine.close()


def test_a_qwen3_embedding_folder_pools_the_end_token(tmp_path: Path) -> None:
    """Its tokenizer puts the end token after each text; its tensors have no `model.` prefix."""
    folder = qwen3.MODELS[0].write_folder(tmp_path / "tiny")
    state = qwen3.MODELS[0].state()
    bare = {name.removeprefix("model."): values for name, values in state.items()}
    write_safetensors(folder / "model.safetensors", bare)
    entries = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    write_json(folder / "modules.json", entries)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    text, end = {"Sequence": {"id": "A", "type_id": 0}}, "<|endoftext|>"
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [text, {"SpecialToken": {"id": end, "type_id": 0}}],
        "pair": [text],
        "special_tokens": {end: {"id": end, "ids": [31], "tokens": [end]}},
    }
    write_json(folder / "tokenizer.json", tokenizer)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        expected = ReferenceModel(checkpoint).embedding([3, 4, 5, 31], Pooling.LAST)
    with LLM(str(folder), CONFIG) as llm:
        [vector] = llm.embed("DEF")
    np.testing.assert_allclose(vector, expected, atol=1e-3)


def refused(folder: Path) -> str:
    with (
        pytest.raises(UnsupportedModelError) as raised,
        HuggingFaceCheckpoint.open(folder) as checkpoint,
    ):
        build(checkpoint)
    return str(raised.value)


def test_both_sides_are_refused_where_a_family_sees_one(tmp_path: Path) -> None:
    folder = llama.PLAIN.write_folder(tmp_path, use_bidirectional_attention=True)
    assert "use_bidirectional_attention False: attention to both sides" in refused(folder)


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("1_Pooling", {"pooling_mode_max_tokens": True}, "pooling max is not"),
        ("1_Pooling", {"pooling_mode": "max"}, "pooling max is not supported"),
        ("1_Pooling", {}, "pooling None is not supported"),
        ("2_Dense", {"activation_function": "torch.nn.Tanh"}, "'torch.nn.Tanh' is not supported"),
    ],
)
def test_modules_that_do_something_else_are_refused(
    file: str, content: Mapping[str, object], problem: str, tmp_path: Path
) -> None:
    folder = MODELS[1].write_folder(tmp_path / "tiny")
    write_json(folder / file / "config.json", content)
    assert problem in refused(folder)


def test_a_third_dense_layer_is_refused(tmp_path: Path) -> None:
    folder = MODELS[1].write_folder(tmp_path / "tiny")
    modules = json.loads((folder / "modules.json").read_text())
    dense = next(one for one in modules if one["type"].endswith("Dense"))
    count = sum(one["type"].endswith("Dense") for one in modules)
    modules[-1:] = [*[dense] * (3 - count), modules[-1]]
    write_json(folder / "modules.json", modules)
    assert "at most 2 Dense" in refused(folder)


def test_a_module_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = MODELS[1].write_folder(tmp_path / "tiny")
    write_json(folder / "modules.json", [{"type": "x.WordWeights", "path": "1"}])
    assert "WordWeights are not supported" in refused(folder)


def test_dense_layers_are_refused_where_a_family_has_none(tmp_path: Path) -> None:
    folder = MODELS[1].write_folder(tmp_path / "tiny")
    (folder / "config.json").unlink()
    write_json(folder / "config.json", MODELS[1].config() | {"use_bidirectional_attention": False})
    assert "2 dense layers after the last norm are not supported" in refused(folder)


@pytest.mark.parametrize(("number", "name"), [(5, "5"), (7, "7")])
def test_a_pooling_that_is_not_supported_is_refused(number: int, name: str, tmp_path: Path) -> None:
    model = replace(MODELS[0], pooling_type=number)
    path = model.write(tmp_path / "tiny.gguf")
    with pytest.raises(
        UnsupportedModelError,
        match=rf"gemma-embedding.pooling_type: pooling {name} is not supported; supported: mean,",
    ):
        Engine.load(path, CONFIG)
    with Engine.load(path, replace(CONFIG, pooling="mean")) as engine:
        np.testing.assert_allclose(
            np.array(engine.embed(TOKENS).vector), model.expected_embedding(), atol=1e-3
        )


@pytest.mark.parametrize(("mode", "pooling"), [("lasttoken", "last"), ("cls_token", "cls")])
def test_pooling_is_the_folders(mode: str, pooling: str, tmp_path: Path) -> None:
    folder = MODELS[0].write_folder(tmp_path / "tiny")
    write_json(folder / "1_Pooling" / "config.json", {f"pooling_mode_{mode}": True})
    with Engine.load(str(folder), CONFIG) as engine:
        vectors = [engine.embed(TOKENS, EmbeddingParams(Pooling(one))).vector for one in POOLINGS]
        assert engine.embed(TOKENS).vector == vectors[POOLINGS.index(pooling)]
        assert len(set(map(tuple, vectors))) == len(POOLINGS)
