"""Folders of sentence-transformers: vectors of texts as it computes them."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from heddle import LLM, EngineConfig
from heddle.errors import InvalidRequestError, ModelFileError, UnsupportedModelError
from heddle.models.build import build
from heddle.server.generate.vectors import shortened
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from live_server import live_server
from models.worded_sentences import (
    DIMENSIONS,
    FOLDERS,
    PROMPTS,
    TEXTS,
    TRUNCATED,
    Sentences,
)
from patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = EngineConfig(slots=3, threads=2, context=48)
BY_NAME = {one.name: one for one in FOLDERS}


def differences(found: np.ndarray, expected: list[list[float]]) -> np.ndarray:
    """1 less the cosine of each vector."""
    cosines = (found.astype(np.float64) * np.array(expected)).sum(-1)
    lengths = np.linalg.norm(found.astype(np.float64), axis=-1)
    return np.asarray(1 - cosines / lengths / np.linalg.norm(expected, axis=-1))


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_vectors_agree_with_sentence_transformers(
    folder: Sentences, device: str, tmp_path: Path
) -> None:
    with LLM(str(folder.write(tmp_path / "m")), replace(CONFIG, device=device)) as llm:
        for prompt in ("", *PROMPTS):
            vectors = llm.embed(TEXTS, prompt_name=prompt or None)
            assert vectors.shape == (len(TEXTS), folder.width)
            assert differences(vectors, folder.vectors(prompt)).max() < 1e-6
        short = [shortened(array("f", vector), DIMENSIONS) for vector in llm.embed(TEXTS)]
        assert differences(np.array(short), folder.vectors(TRUNCATED)).max() < 1e-6
        assert llm.embed([]).shape == (0, folder.width)


def test_bits_are_the_same_in_company(tmp_path: Path) -> None:
    """Also where a dense layer reads the mean of a text: steps of a few tokens, and of many."""
    path = str(BY_NAME["mean-tanh"].write(tmp_path / "m"))
    found = []
    for settings in ({}, {"batch_tokens": 7}, {"isa": "portable"}):
        with LLM(path, replace(CONFIG, **settings)) as llm:
            found += [llm.embed(TEXTS), llm.embed(TEXTS[::-1])[::-1]]
            found.append(np.concatenate([llm.embed(text) for text in TEXTS]))
    for vectors in found[1:]:
        np.testing.assert_array_equal(vectors, found[0])


def test_vectors_over_http_have_the_width_of_the_last_dense_layer(tmp_path: Path) -> None:
    path = str(BY_NAME["mean-identity"].write(tmp_path / "m"))
    with LLM(path, CONFIG) as llm, live_server(llm.engine) as server:

        def ask(route: str, **body: Any) -> httpx.Response:
            return httpx.post(f"{server.url}{route}", json=body, timeout=PATIENCE)

        [one] = ask("/v1/embeddings", input=TEXTS[0], model="m").json()["data"]
        assert one["embedding"] == pytest.approx(llm.embed(TEXTS[0])[0])
        refused = ask("/v1/embeddings", input=TEXTS[0], model="m", dimensions=33)
        assert refused.status_code == 400 and "dimensions must be 1 to 32" in refused.text
        [each] = ask("/pooling", input=TEXTS[0], pooling="none", normalize=False).json()["data"]
        tokens = len(llm.engine.model.tokenizer.encode(TEXTS[0]))
        assert np.array(each["data"]).shape == (tokens, 32)
        mean = np.array(each["data"]).mean(0)
        assert mean / np.linalg.norm(mean) == pytest.approx(one["embedding"], abs=1e-6)


@pytest.mark.parametrize("name", ["mean-tanh", "last-two"])
def test_another_pooling_is_refused_where_an_activation_follows(name: str, tmp_path: Path) -> None:
    path = str(BY_NAME[name].write(tmp_path / "m"))
    with LLM(path, replace(CONFIG, pooling="none")) as llm:
        with pytest.raises(InvalidRequestError, match="own way, so pooling mean is not supported"):
            llm.embed("a", pooling="mean")
        assert llm.embed("a").shape == (1, BY_NAME[name].width)


@pytest.mark.parametrize(
    ("file", "changes", "problem"),
    [
        ("2_Dense/config.json", {"use_residual": True}, "use_residual True with"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.GELU"}, "'torch.nn.GELU' is not"),
        ("2_Dense/config.json", {"activation_function": []}, r"activation_function \[\] is not"),
        ("2_Dense/config.json", {"out_features": None}, "1 dense layers after"),
        ("2_Dense/config.json", {"out_features": -1}, "out_features"),
        ("2_Dense/config.json", {"out_features": 2**40}, "at most 64"),
        ("2_Dense/config.json", {"out_features": "32"}, "out_features"),
    ],
)
def test_dense_layers_that_are_wrong_are_refused(
    file: str, changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    folder = BY_NAME["mean-identity"].write(tmp_path / "m")
    config = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps(config))
    with (
        pytest.raises((ModelFileError, UnsupportedModelError), match=problem),
        HuggingFaceCheckpoint.open(folder) as checkpoint,
    ):
        build(checkpoint)


def test_layers_of_another_order_are_refused(tmp_path: Path) -> None:
    """A length of 1 before a dense layer with a bias gives other vectors."""
    folder = BY_NAME["mean-identity"].write(tmp_path / "m")
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*modules[:2], modules[3], modules[2]]))
    with pytest.raises(UnsupportedModelError, match="Pooling, Normalize, Dense are not"):
        HuggingFaceCheckpoint.open(folder)
