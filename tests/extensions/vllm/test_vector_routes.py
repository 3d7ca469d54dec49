"""`/score`, `/classify`, `/pooling` and `/rerank` of encoders, over a socket."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from heddle import LLM, EngineConfig
from heddle.embedding import EmbeddingParams
from heddle.engine.streaming.blocking import Collector
from heddle.errors import InvalidRequestError, UnsupportedParameterError
from live_server import live_server
from models.worded_encoders import CLS, SEP, write_encoder
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = EngineConfig(slots=3, threads=2, context=48)
QUERY = "what is a loom"
DOCUMENTS = ["a loom", "warps", "[SEP] x", "the loom has a warp " * 2]


def started(folder: Path) -> Iterator[tuple[LLM, str]]:
    with LLM(str(folder), CONFIG) as llm, live_server(llm.engine) as server:
        yield llm, server.url


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, str]]:
    yield from started(write_encoder(tmp_path_factory.mktemp("vectors") / "m"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, str]]:
    yield from started(write_encoder(tmp_path_factory.mktemp("pairs") / "m", ["score"]))


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, str]]:
    yield from started(write_encoder(tmp_path_factory.mktemp("classes") / "m", ["no", "yes", "?"]))


def ask(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json=body, timeout=PATIENCE)


def logits(llm: LLM, tokens: list[int]) -> list[float]:
    params = EmbeddingParams(unit_length=False)
    [made] = llm._run([tokens], [params], Collector.wait_embedding, None)
    return made.vector.tolist()


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_a_cross_encoder_reads_pairs(pairs: tuple[LLM, str]) -> None:
    llm, url = pairs
    encode = llm.engine.model.tokenizer.encode
    plain = [encode(text, add_special=False, parse_special=False) for text in (QUERY, *DOCUMENTS)]
    expected = [logistic(logits(llm, [CLS, *plain[0], SEP, *one, SEP])[0]) for one in plain[1:]]
    assert len(set(expected)) == len(DOCUMENTS)
    assert llm.rerank(QUERY, DOCUMENTS) == pytest.approx(expected)
    assert llm.score([QUERY] * 4, DOCUMENTS) == pytest.approx(expected)
    answer = ask(url, "/score", text_1=QUERY, text_2=DOCUMENTS).json()
    assert [one["score"] for one in answer["data"]] == pytest.approx(expected)
    assert [one["index"] for one in answer["data"]] == [0, 1, 2, 3]
    swapped = ask(url, "/v1/score", queries=DOCUMENTS, documents=QUERY).json()
    backwards = llm.score(DOCUMENTS, [QUERY] * 4)
    assert [one["score"] for one in swapped["data"]] == pytest.approx(backwards)
    ranked = ask(url, "/rerank", query=QUERY, documents=DOCUMENTS).json()["results"]
    order = sorted(range(4), key=lambda at: -expected[at])
    assert [one["index"] for one in ranked] == order


def test_a_document_too_long_for_a_cross_encoder_loses_its_end(pairs: tuple[LLM, str]) -> None:
    llm, url = pairs
    encode = llm.engine.model.tokenizer.encode
    query, document = (encode(text, add_special=False) for text in (QUERY, "a loom warps " * 30))
    kept = {48: document[: 48 - 3 - len(query)], 20: document[: 20 - 3 - len(query)]}
    expected = {
        most: logistic(logits(llm, [CLS, *query, SEP, *one, SEP])[0]) for most, one in kept.items()
    }
    assert len(set(expected.values())) == 2
    for most, body in {
        48: {"truncate_prompt_tokens": -1},
        20: {"max_tokens_per_doc": len(kept[20])},
    }.items():
        pair = {"text_1": QUERY, "text_2": "a loom warps " * 30}
        [scored] = ask(url, "/score", **pair, **body).json()["data"]
        assert scored["score"] == pytest.approx(expected[most])
        ranked = ask(url, "/v2/rerank", query=QUERY, documents=[pair["text_2"]], **body).json()
        assert ranked["results"][0]["relevance_score"] == scored["score"]
        assert ranked["usage"]["prompt_tokens"] == most
    [plain] = ask(url, "/rerank", query=QUERY, documents=["a loom warps " * 30]).json()["results"]
    assert plain["relevance_score"] == pytest.approx(expected[48])


def test_texts_lose_their_end_if_a_request_asks(
    vectors: tuple[LLM, str], classes: tuple[LLM, str]
) -> None:
    llm, url = vectors
    long = "loom a warps " * 30
    [scored] = ask(url, "/score", text_1=long, text_2="a", truncate_prompt_tokens=5).json()["data"]
    [same] = ask(url, "/score", text_1="loom a warp", text_2="a").json()["data"]
    assert llm.engine.model.tokenizer.encode(long)[:4] == [
        *llm.engine.model.tokenizer.encode("loom a warp")[:-1]
    ]
    assert scored["score"] == same["score"]
    pooled = ask(url, "/pooling", input=long, truncate_prompt_tokens=5).json()["data"]
    assert pooled == ask(url, "/pooling", input="loom a warp").json()["data"]
    _, url = classes
    classified = ask(url, "/classify", input=long, truncate_prompt_tokens=5).json()
    assert classified["usage"]["prompt_tokens"] == 5
    assert classified["data"] == ask(url, "/classify", input="loom a warp").json()["data"]
    whole = ask(url, "/classify", input=long, truncate_prompt_tokens=-1).json()
    assert whole["usage"]["prompt_tokens"] == 48


def test_scores_may_be_logits(pairs: tuple[LLM, str]) -> None:
    llm, url = pairs
    [expected] = logits(llm, llm.engine.model.judge().prompt(QUERY, DOCUMENTS[0]))
    body = {"text_1": QUERY, "text_2": DOCUMENTS[0], "use_activation": False}
    [scored] = ask(url, "/score", **body).json()["data"]
    assert scored["score"] == pytest.approx(expected)
    [ranked] = ask(url, "/rerank", query=QUERY, texts=DOCUMENTS[:1], raw_scores=True).json()
    assert ranked["score"] == pytest.approx(expected)


def test_embeddings_score_pairs_by_their_cosine(vectors: tuple[LLM, str]) -> None:
    llm, url = vectors
    texts = llm.embed([QUERY, *DOCUMENTS])
    answer = ask(url, "/score", text_1=[QUERY], text_2=DOCUMENTS).json()
    assert [one["score"] for one in answer["data"]] == pytest.approx(texts[1:] @ texts[0], abs=1e-6)
    together = ask(url, "/score", data_1=DOCUMENTS[:2], data_2=DOCUMENTS[:2]).json()
    assert [one["score"] for one in together["data"]] == pytest.approx([1, 1], abs=1e-6)


def test_a_classifier_gives_the_probability_of_each_class(classes: tuple[LLM, str]) -> None:
    llm, url = classes
    answer = ask(url, "/classify", input=DOCUMENTS).json()
    for text, one in zip(DOCUMENTS, answer["data"], strict=True):
        scores = np.exp(logits(llm, llm.engine.model.tokenizer.encode(text)))
        expected = scores / scores.sum()
        assert one["probs"] == pytest.approx(expected, rel=1e-5)
        assert one["label"] == ["no", "yes", "?"][int(expected.argmax())]
        assert one["num_classes"] == 3
    raw = ask(url, "/v1/classify", input="a loom", use_activation=False).json()["data"][0]
    assert raw["probs"] == pytest.approx(logits(llm, llm.engine.model.tokenizer.encode("a loom")))
    assert ask(url, "/pooling", input="a loom").json()["data"][0]["data"] == pytest.approx(
        answer["data"][0]["probs"]
    )


def test_a_text_may_have_several_classes(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "m", ["a", "b"], problem_type="multi_label_classification")
    for llm, url in started(folder):
        [one] = ask(url, "/classify", input="a loom").json()["data"]
        scores = logits(llm, llm.engine.model.tokenizer.encode("a loom"))
        assert one["probs"] == pytest.approx(list(map(logistic, scores)))


def test_pooling_gives_one_vector_or_one_for_each_token(vectors: tuple[LLM, str]) -> None:
    llm, url = vectors
    whole = llm.embed(DOCUMENTS)
    answer = ask(url, "/pooling", input=DOCUMENTS).json()
    assert np.array([one["data"] for one in answer["data"]]) == pytest.approx(whole)
    encoded = ask(url, "/pooling", input="a loom", encoding_format="base64").json()["data"][0]
    assert np.frombuffer(base64.b64decode(encoded["data"]), np.float32) == pytest.approx(whole[0])
    [each] = ask(url, "/pooling", input="a loom", pooling="none", normalize=False).json()["data"]
    assert np.array(each["data"]).shape == (4, whole.shape[1])
    mean = np.array(each["data"]).mean(0)
    assert mean / np.linalg.norm(mean) == pytest.approx(llm.embed("a loom", "mean")[0], abs=1e-6)
    [longer] = ask(url, "/pooling", input="a loom", normalize=False).json()["data"]
    assert np.linalg.norm(longer["data"]) != pytest.approx(1)


@pytest.mark.parametrize(
    ("model", "path", "body", "error"),
    [
        ("vectors", "/classify", {"input": "a"}, "has no classes"),
        ("vectors", "/rerank", {"query": "a", "documents": ["b"]}, "cannot rerank"),
        ("vectors", "/score", {"text_1": "a"}, "send text_1 and text_2"),
        ("vectors", "/score", {"text_1": "a", "documents": "b"}, "send text_1 and text_2"),
        ("vectors", "/score", {"text_1": ["a"] * 3, "text_2": ["a"] * 2}, "3 queries cannot"),
        ("vectors", "/score", {"text_1": [], "text_2": ["a"]}, "text_1 has no text"),
        ("classes", "/classify", {"input": "loom " * 90}, "context holds"),
        ("vectors", "/pooling", {"input": ["a"] * 2049}, "at most 2048"),
        ("classes", "/v1/embeddings", {"input": "a"}, "makes no embeddings"),
        ("pairs", "/embedding", {"content": "a"}, "makes no embeddings"),
        ("pairs", "/api/embed", {"model": "m", "input": "a"}, "makes no embeddings"),
        ("classes", "/score", {"text_1": "a", "text_2": "b"}, "sorts texts into 3 classes"),
        ("pairs", "/score", {"text_1": "a", "text_2": "loom " * 90}, '"param":"text_2"'),
        ("pairs", "/rerank", {"query": "a", "documents": ["b"], "instruction": "x"}, "instruction"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(
    model: str, path: str, body: dict[str, Any], error: str, request: pytest.FixtureRequest
) -> None:
    _, url = request.getfixturevalue(model)
    answer = ask(url, path, **body)
    assert answer.status_code == 400, answer.text
    assert error in answer.text


def test_the_library_refuses_the_same(pairs: tuple[LLM, str], vectors: tuple[LLM, str]) -> None:
    with pytest.raises(InvalidRequestError, match="instruction"):
        pairs[0].rerank("a", ["b"], "judge")
    with pytest.raises(InvalidRequestError, match="2 queries cannot be paired with 3"):
        pairs[0].score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(UnsupportedParameterError, match="cannot rerank"):
        vectors[0].score("a", ["b"])
    with pytest.raises(UnsupportedParameterError, match="makes no embeddings"):
        pairs[0].embed("a")
