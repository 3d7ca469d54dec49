"""Cohere's `/v2/embed`, and shorter vectors and texts of other routes, over a socket."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from heddle import LLM, EngineConfig
from live_server import live_server
from models.worded_encoders import CLS, SEP, write_encoder
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = EngineConfig(slots=3, threads=2, context=16)
TEXTS = ["a loom", "the warp of a loom"]
LONG = " ".join("abcdefghijklmnopqrstuvwxyz")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, str]]:
    folder = write_encoder(tmp_path_factory.mktemp("cohere") / "m")
    prompts = {"prompts": {"query": "q ", "document": "d "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with LLM(str(folder), CONFIG) as llm, live_server(llm.engine) as server:
        yield llm, server.url


def ask(url: str, path: str = "/v2/embed", **body: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json={"model": "m"} | body, timeout=PATIENCE)


def embedded(url: str, texts: list[str], **more: Any) -> dict[str, Any]:
    answer = ask(url, texts=texts, **{"input_type": "clustering"} | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_numbers_come_in_each_asked_type(served: tuple[LLM, str]) -> None:
    llm, url = served
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    answer = embedded(url, TEXTS, embedding_types=kinds)
    found = {kind: answer["embeddings"][kind] for kind in kinds}
    expected = llm.embed(TEXTS)
    assert np.array(found["float"]) == pytest.approx(expected)
    for row in range(2):
        read = np.frombuffer(base64.b64decode(found["base64"][row]), np.float32)
        np.testing.assert_array_equal(read, expected[row])
    whole = np.rint(expected * 127)
    np.testing.assert_array_equal(found["int8"], whole)
    np.testing.assert_array_equal(found["uint8"], whole + 128)
    bits = np.packbits(expected > 0, axis=1)
    np.testing.assert_array_equal(found["ubinary"], bits)
    np.testing.assert_array_equal(found["binary"], bits.astype(int) - 128)
    assert answer["texts"] == TEXTS
    assert answer["meta"]["billed_units"]["input_tokens"] == 4 + 7
    assert answer["response_type"] == "embeddings_by_type"


def test_a_type_of_input_has_the_prompt_of_the_models_files(served: tuple[LLM, str]) -> None:
    llm, url = served
    for kind, name in (("search_query", "query"), ("search_document", "document")):
        found = embedded(url, TEXTS, input_type=kind)["embeddings"]["float"]
        assert np.array(found) == pytest.approx(llm.embed(TEXTS, prompt_name=name))
    plain = llm.embed(TEXTS)
    assert np.abs(plain - llm.embed(TEXTS, prompt_name="query")).max() > 1e-3


def test_inputs_hold_parts_of_text(served: tuple[LLM, str]) -> None:
    llm, url = served
    content = [{"type": "text", "text": text} for text in TEXTS]
    answer = ask(url, inputs=[{"content": content}], input_type="clustering").json()
    [found] = answer["embeddings"]["float"]
    assert found == pytest.approx(llm.embed("\n".join(TEXTS))[0])


def test_a_vector_may_be_shorter(served: tuple[LLM, str]) -> None:
    llm, url = served
    [whole] = llm.embed(TEXTS[:1])
    first = whole[:8] / np.linalg.norm(whole[:8])
    [found] = embedded(url, TEXTS[:1], output_dimension=8)["embeddings"]["float"]
    assert found == pytest.approx(first)
    answer = ask(url, "/v1/embeddings", input=TEXTS[0], dimensions=8).json()
    assert answer["data"][0]["embedding"] == pytest.approx(first)
    answer = ask(url, "/api/embed", input=TEXTS[0], dimensions=8).json()
    assert answer["embeddings"][0] == pytest.approx(first)


def test_a_long_text_loses_its_end_or_its_beginning_but_no_mark(served: tuple[LLM, str]) -> None:
    llm, url = served
    ids = llm.engine.model.tokenizer.encode(LONG, add_special=False)
    cut = llm.embed([[CLS, *ids[:14], SEP], [CLS, *ids[-14:], SEP], [CLS, *ids[:3], SEP]])
    for more, expected in (
        ({}, cut[0]),
        ({"truncate": "END"}, cut[0]),
        ({"truncate": "START"}, cut[1]),
        ({"truncate": "END", "max_tokens": 5}, cut[2]),
    ):
        [found] = embedded(url, [LONG], **more)["embeddings"]["float"]
        assert found == pytest.approx(expected)
    answer = ask(url, "/api/embed", input=LONG).json()
    assert answer["embeddings"][0] == pytest.approx(cut[0])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"texts": [LONG], "truncate": "NONE"}, "context holds 16"),
        ({"texts": ["a loom"], "truncate": "NONE", "max_tokens": 3}, "max_tokens is 3"),
        ({}, "send either texts or inputs"),
        ({"texts": []}, "texts"),
        ({"texts": ["a"], "input_type": "picture"}, "input_type"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types"),
        ({"texts": ["a"], "output_dimension": 49}, "output_dimension must be 1 to 48"),
        ({"texts": ["a"], "images": ["data:"]}, "images"),
        ({"texts": ["a"], "model": "unknown"}, "unknown"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    served: tuple[LLM, str], body: dict[str, Any], error: str
) -> None:
    answer = ask(served[1], **{"input_type": "clustering"} | body)
    assert answer.status_code in (400, 404), answer.text
    assert error in answer.json()["error"]["message"]


def test_dimensions_of_openai_are_bounded_by_the_width(served: tuple[LLM, str]) -> None:
    for wrong in (0, 49):
        answer = ask(served[1], "/v1/embeddings", input="a", dimensions=wrong)
        assert answer.status_code == 400
        assert "dimensions must be 1 to 48" in answer.json()["error"]["message"]
