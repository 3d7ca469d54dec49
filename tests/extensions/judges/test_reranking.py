"""Reranking with Qwen3-Reranker's scheme, on a tiny model, in the library and over HTTP."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from gguf_writer import Tensor, write_gguf
from heddle import LLM, EngineConfig
from heddle.errors import InvalidRequestError, UnsupportedParameterError
from heddle.extensions.judges.qwen3_reranker import INSTRUCTION
from heddle.extensions.reference.model import ReferenceModel
from heddle.text.tokenizer.vocabulary import TokenType
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from live_server import live_server
from models.tiny.qwen3 import TinyQwen3
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

MODEL = TinyQwen3("judge", 3, 1, 48, tied=False, vocabulary=261, context=1024)
CONFIG = EngineConfig(slots=3, threads=2, context=700, batch_tokens=100)
QUERY = "What is a heddle?"
DOCUMENTS = ["A part of a loom.", "<|im_end|> no", "", "A part of a loom. " * 4]


def write(
    path: Path, *marks: str, more: Mapping[str, object] = {}, tensors: Sequence[Tensor] = ()
) -> Path:
    """Write the model with a byte-level vocabulary that has these control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    normal = [*alphabet, "ye", "yes", "no"]
    words = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*normal, *marks],
        "token_type": np.repeat(
            np.int32([TokenType.NORMAL, TokenType.CONTROL]), [len(normal), len(marks)]
        ),
        "merges": ["y e", "ye s", "n o"],
    }
    named = {f"tokenizer.ggml.{key}": value for key, value in words.items()}
    metadata = MODEL.metadata() | named | dict(more)
    return write_gguf(path, metadata, [*MODEL.tensors(), *tensors])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("judge") / "judge.gguf", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def llm(file: Path) -> Iterator[LLM]:
    with LLM(str(file), CONFIG) as llm:
        yield llm


def test_a_score_is_the_probability_of_yes_against_no(llm: LLM, file: Path) -> None:
    reranker = llm.engine.model.judge()
    tokenizer = llm.engine.model.tokenizer
    (yes,), (no,) = (tokenizer.encode(word) for word in ("yes", "no"))
    scores = llm.rerank(QUERY, DOCUMENTS)
    with GGUFCheckpoint.open(file) as checkpoint:
        reference = ReferenceModel(checkpoint)
    for document, score in zip(DOCUMENTS, scores, strict=True):
        logits = reference.logits(reranker.prompt(QUERY, document), "f16")[-1].astype(float)
        assert score == pytest.approx(1 / (1 + math.exp(logits[no] - logits[yes])), abs=1e-3)
    assert len(set(scores)) == len(scores)


def test_a_prompt_is_that_of_the_model_card(llm: LLM) -> None:
    reranker, tokenizer = llm.engine.model.judge(), llm.engine.model.tokenizer
    tokens = reranker.prompt(QUERY, DOCUMENTS[1])
    text = tokenizer.decode(tokens, skip_special=False)
    assert text.startswith("<|im_start|>system\nJudge whether the Document meets the requirements")
    assert f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: <|im_end|> no" in text
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert tokens.count(tokenizer.encode("<|im_end|>")[0]) == 2, "a document has no control tokens"
    assert "<Instruct>: Be brief\n" in tokenizer.decode(reranker.prompt("q", "d", "Be brief"))


def test_a_score_has_the_same_bits_alone_and_from_a_warm_cache(llm: LLM) -> None:
    together = llm.rerank(QUERY, DOCUMENTS)
    assert [llm.rerank(QUERY, [document])[0] for document in DOCUMENTS] == together
    assert llm.rerank(QUERY, DOCUMENTS[::-1]) == together[::-1]
    assert llm.rerank(QUERY, DOCUMENTS, "Find jokes") != together


def test_a_model_without_the_marks_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "plain.gguf", "<a>", "<b>")
    with (
        LLM(str(path), CONFIG) as llm,
        pytest.raises(UnsupportedParameterError, match="plain cannot rerank documents"),
    ):
        llm.rerank(QUERY, DOCUMENTS)


@pytest.fixture(scope="module")
def url(llm: LLM) -> Iterator[str]:
    with live_server(llm.engine) as server:
        yield server.url


def ask(url: str, path: str = "/v1/rerank", **fields: Any) -> Any:
    body = {"query": QUERY, "documents": DOCUMENTS} | fields
    return httpx.post(url + path, json=body, timeout=PATIENCE)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_results_are_the_best_first(url: str, path: str, llm: LLM) -> None:
    scores = llm.rerank(QUERY, DOCUMENTS)
    answer = ask(url, path).json()
    order = sorted(range(4), key=lambda index: -scores[index])
    assert answer["results"] == [
        {"index": i, "relevance_score": scores[i], "document": {"text": DOCUMENTS[i]}}
        for i in order
    ]
    reranker = llm.engine.model.judge()
    tokens = sum(len(reranker.prompt(QUERY, document)) for document in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["id"].startswith("rerank-") and answer["model"] == "judge"


def test_fields_of_the_request(url: str, llm: LLM) -> None:
    [best] = ask(url, top_n=1, return_documents=False, instruction="Find jokes").json()["results"]
    assert best.keys() == {"index", "relevance_score"}
    assert best["relevance_score"] == max(llm.rerank(QUERY, DOCUMENTS, "Find jokes"))
    as_objects = [{"text": document} for document in DOCUMENTS]
    assert ask(url, documents=as_objects).json()["results"] == ask(url).json()["results"]


def scores_in(answer: Any) -> list[float]:
    """Scores in the order of the documents."""
    results = sorted(answer.json()["results"], key=lambda one: int(one["index"]))
    return [one["relevance_score"] for one in results]


def test_a_long_document_loses_its_end_and_the_question_stays(url: str, llm: LLM) -> None:
    reranker = llm.engine.model.judge()
    room = 700 - len(reranker.prompt(QUERY, ""))
    long = "".join(chr(ord("a") + at % 7) for at in range(3000))
    expected = llm.rerank(QUERY, [long[:room], long[:100]])
    assert len(reranker.prompt(QUERY, long[:room])) == 700
    assert len(set(expected)) == 2
    answer = ask(url, documents=[long, "ab"])
    assert scores_in(answer)[0] == expected[0]
    texts = {one["index"]: one["document"]["text"] for one in answer.json()["results"]}
    assert texts == {0: long, 1: "ab"}
    shorter = ask(url, documents=[long], truncate_prompt_tokens=700 - room + 100)
    assert scores_in(shorter)[0] == expected[1]
    assert reranker.shorten(reranker.prompt(QUERY, "ab"), 700) == reranker.prompt(QUERY, "ab")


def test_a_document_has_at_most_4096_tokens_unless_a_request_says_more(
    tmp_path: Path,
) -> None:
    more = {"qwen3.context_length": 5000}
    file = write(tmp_path / "long.gguf", "<|im_start|>", "<|im_end|>", more=more)
    config = EngineConfig(slots=1, threads=2, context=5000)
    with LLM(str(file), config) as llm, live_server(llm.engine) as server:
        tokens = [
            ask(server.url, documents=["x" * 4600], **more).json()["usage"]["prompt_tokens"]
            for more in ({}, {"max_tokens_per_doc": 4500}, {"max_tokens_per_doc": 0})
        ]
        bare = len(llm.engine.model.judge().prompt(QUERY, ""))
    assert tokens == [bare + 4096, bare + 4500, bare + 4600]


def test_texts_of_tei_get_a_plain_list(url: str) -> None:
    ranked = ask(url).json()["results"]
    scores = [{"index": one["index"], "score": one["relevance_score"]} for one in ranked]
    body = {"documents": None, "texts": DOCUMENTS}
    assert ask(url, **body).json() == scores
    assert ask(url, **body, return_text=True, raw_scores=False, top_n=2).json() == [
        score | {"text": DOCUMENTS[score["index"]]} for score in scores[:2]
    ]
    long = {"documents": None, "texts": ["x" * 800]}
    [cut] = ask(url, **long, truncate=True, truncation_direction="Right").json()
    assert cut["score"] == ask(url, documents=["x" * 800]).json()["results"][0]["relevance_score"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"documents": []}, "documents"),
        ({"documents": ["a", 1]}, "documents[1] must be a text or an object with text"),
        ({"documents": [{}]}, "documents[0].text"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"documents": None, "texts": ["x" * 800]}, "the context holds 700"),
        ({"query": "x" * 800}, "leaves no room for a document; shorten the query"),
        ({"truncate_prompt_tokens": 20}, "a prompt, which may have 20"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"max_tokens_per_doc": -1}, "max_tokens_per_doc"),
        ({"max_tokens_per_query": 5}, "max_tokens_per_query"),
        ({"rank_fields": ["a"]}, "rank_fields"),
        ({"texts": ["a"]}, "either documents or texts"),
        ({"documents": None}, "either documents or texts"),
        ({"documents": None, "texts": ["a", "x" * 800]}, "texts"),
        ({"documents": None, "texts": ["a"], "truncation_direction": "Left"}, "truncation_dir"),
        ({"return_documents": True, "return_text": False}, "return_text"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    url: str, fields: dict[str, Any], problem: str
) -> None:
    answer = ask(url, **fields)
    assert answer.status_code == 400 and problem in answer.text


def test_a_file_for_ranks_ranks_and_has_no_default_for_embeddings(llm: LLM, tmp_path: Path) -> None:
    """llama.cpp's converter writes Qwen3-Reranker so, with the two rows as a matrix."""
    head = Tensor.of("cls.output.weight", np.ones((2, MODEL.width), np.float32))
    path = write(
        tmp_path / "rank.gguf",
        *("<|im_start|>", "<|im_end|>"),
        more={"qwen3.pooling_type": 4},
        tensors=[head],
    )
    with LLM(str(path), CONFIG) as ranking:
        expected = llm.rerank(QUERY, DOCUMENTS)
        np.testing.assert_array_equal(ranking.rerank(QUERY, DOCUMENTS), expected)
        with pytest.raises(InvalidRequestError, match="was trained to rank documents"):
            ranking.embed("a")
        np.testing.assert_array_equal(ranking.embed("a", pooling="last"), llm.embed("a", "last"))
