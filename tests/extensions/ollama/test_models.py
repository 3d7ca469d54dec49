"""Lists and descriptions of models, embeddings, and routes that are refused."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from fake_model import FakeTokenizer
from heddle.server.http.hints import HEADER
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running


def test_the_list_has_every_name_with_a_tag(serve: Callable[..., Running]) -> None:
    server = serve(alias=("best", "gpt:small"))
    models = server.get("/api/tags").json()["models"]
    assert [one["name"] for one in models] == ["fake:latest", "best:latest", "gpt:small"]
    assert [one["model"] for one in models] == [one["name"] for one in models]
    assert len({one["digest"] for one in models}) == 1
    assert models[0]["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "fake",
        "families": ["fake"],
        "parameter_size": "0",
        "quantization_level": "F32",
    }
    assert datetime.fromisoformat(models[0]["modified_at"]).tzinfo is not None


def test_loaded_models(shared: Running) -> None:
    [model] = shared.get("/api/ps").json()["models"]
    assert (model["name"], model["context_length"], model["size_vram"]) == ("fake:latest", 512, 0)
    assert datetime.fromisoformat(model["expires_at"]) > datetime(2300, 1, 1, tzinfo=UTC)


def test_a_description(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shared.post("/api/show", {"model": "fake:latest"}).json()
    assert shown == shared.post("/api/show", {"name": "fake"}).json()
    assert shown["template"] == "{{ messages }}"
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["model_info"]["fake.context_length"] == 512
    assert shown["model_info"]["general.architecture"] == "fake"
    assert shown["details"]["family"] == "fake"
    assert shown["parameters"].split() == ["num_ctx", "512"]
    monkeypatch.setattr(FakeTokenizer, "fills_in", True)
    assert "insert" in shared.post("/api/show", {"model": "fake"}).json()["capabilities"]


def test_default_options_are_shown_under_names_of_ollama(serve: Callable[..., Running]) -> None:
    server = serve(defaults={"temperature": 0.5, "repetition_penalty": 1.1})
    lines = server.post("/api/show", {"model": "fake"}).json()["parameters"].splitlines()
    shown = dict(line.split() for line in lines)
    assert shown == {"temperature": "0.5", "repeat_penalty": "1.1", "num_ctx": "512"}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "other"}, 404, "'other' not found"),
        ({}, 400, "model"),
        ({"model": "fake", "system": "x"}, 400, "system"),
    ],
)
def test_no_description(shared: Running, body: Any, status: int, words: str) -> None:
    answer = shared.post("/api/show", body)
    assert answer.status_code == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_clients_find_the_server(shared: Running, method: str) -> None:
    for path, text in (("/", "Ollama is running"), ("/api/version", '{"version":')):
        answer = httpx.request(method, shared.url + path, timeout=PATIENCE)
        assert answer.status_code == 200
        assert answer.text.startswith(text if method == "GET" else "")
    assert shared.get("/v1").status_code == 404


def test_the_older_part_of_the_version_suffices_for_clients(shared: Running) -> None:
    version = shared.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 12, 0)


@pytest.mark.parametrize("route", ["create", "copy", "push", "blobs/sha256:12"])
def test_routes_that_are_refused_by_name(shared: Running, route: str) -> None:
    answer = shared.post(f"/api/{route}", {"model": "fake"})
    assert answer.status_code == 501
    assert answer.json()["error"].startswith(f"/api/{route.partition('/')[0]}")


def test_an_unknown_route_has_the_same_shape(shared: Running) -> None:
    answer = shared.get("/api/unknown")
    assert (answer.status_code, answer.json()) == (404, {"error": "Not Found: GET /api/unknown"})


def embed(server: Running, **fields: Any) -> Any:
    return server.post("/api/embed", {"model": "fake", **fields}).json()


def test_embeddings(shared: Running) -> None:
    data = shared.post("/v1/embeddings", {"model": "fake", "input": ["ab", "c"]}).json()["data"]
    expected = [one["embedding"] for one in data]
    answer = embed(shared, input=["ab", "c"])
    assert answer["embeddings"] == expected
    assert (answer["model"], answer["prompt_eval_count"]) == ("fake", 3)
    assert answer["total_duration"] >= answer["load_duration"] > 0
    assert embed(shared, input="ab")["embeddings"] == expected[:1]
    older = shared.post("/api/embeddings", {"model": "fake", "prompt": "ab"})
    assert older.json() == {"embedding": expected[0]}


def test_no_text_gives_no_vector(shared: Running) -> None:
    for none in ([], "", None):
        assert embed(shared, input=none)["embeddings"] == []
    assert shared.post("/api/embeddings", {"model": "fake"}).json() == {"embedding": []}


def test_long_texts_are_cut_unless_the_body_forbids_it(shared: Running) -> None:
    assert embed(shared, input="a" * 600)["prompt_eval_count"] == 512
    assert embed(shared, input="a" * 600) == embed(shared, input="a" * 512) | {
        name: pytest.approx(1, abs=1e12) for name in ("total_duration", "load_duration")
    }
    assert "input[0]" not in embed(shared, input="a", truncate=False)
    refused = shared.post("/api/embed", {"model": "fake", "input": "a" * 600, "truncate": False})
    assert (refused.status_code, "600 tokens" in refused.json()["error"]) == (400, True)


def test_long_texts_are_cut_to_the_longest_prompt_of_the_settings(
    serve: Callable[..., Running],
) -> None:
    server = serve(max_prompt_tokens=5)
    assert embed(server, input=["a" * 9, "ab"])["prompt_eval_count"] == 7
    assert embed(server, input="a" * 9)["embeddings"] == embed(server, input="a" * 5)["embeddings"]
    older = server.post("/api/embeddings", {"model": "fake", "prompt": "a" * 9})
    assert older.json()["embedding"] == embed(server, input="a" * 5)["embeddings"][0]
    refused = server.post("/api/embed", {"model": "fake", "input": "a" * 9, "truncate": False})
    assert (refused.status_code, "max_prompt_tokens" in refused.json()["error"]) == (400, True)


def test_a_text_that_is_cut_keeps_the_token_that_ends_texts(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTokenizer, "_suffix_ids", [29])
    server = serve(max_prompt_tokens=5)
    cut = embed(server, input="a" * 9)
    assert cut["prompt_eval_count"] == 5
    assert cut["embeddings"] == embed(server, input="a" * 4)["embeddings"]
    older = server.post("/api/embeddings", {"model": "fake", "prompt": "a" * 9})
    assert older.json()["embedding"] == cut["embeddings"][0]


def test_options_have_no_effect_on_vectors(shared: Running) -> None:
    body = {"model": "fake", "input": "ab", "options": {"temperature": 0.5, "num_ctx": 64}}
    answer = shared.post("/api/embed", body | {"keep_alive": "5m"})
    assert answer.json()["embeddings"] == embed(shared, input="ab")["embeddings"]
    assert set(answer.headers[HEADER].split(", ")) == {"options", "keep_alive"}


def test_fewer_dimensions(shared: Running) -> None:
    [whole] = embed(shared, input="ab", dimensions=2)["embeddings"]
    [first] = embed(shared, input="ab", dimensions=1)["embeddings"]
    assert whole == embed(shared, input="ab")["embeddings"][0]
    assert first == [pytest.approx(math.copysign(1, whole[0]))]


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"input": ["a", ""]}, "input[1]"), ({"input": [1]}, "input"), ({"dimensions": -1}, "dim")],
)
def test_invalid_embeddings(shared: Running, fields: Any, name: str) -> None:
    answer = shared.post("/api/embed", {"model": "fake", "input": "a"} | fields)
    assert (answer.status_code, name in answer.json()["error"]) == (400, True)
