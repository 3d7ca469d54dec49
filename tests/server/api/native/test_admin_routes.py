"""Models, health, and what all responses have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest

from heddle.weights.files import FileStamp
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_server import Running


def test_models(shared: Running) -> None:
    [model] = shared.openai.models.list().data
    assert (model.id, model.object, model.owned_by) == ("fake", "model", "heddle")
    fields = model.model_dump()
    assert fields["root"] == "fake.gguf"
    assert fields["max_model_len"] == 512
    assert fields["quantisation"] == "F32"
    assert fields["kv_type"] == "f16"
    assert fields["parameters"] == 0
    assert fields["status"] == {"value": "loaded"}
    again = shared.openai.models.retrieve("fake").model_dump()
    assert again.pop("uptime_seconds") >= fields.pop("uptime_seconds") >= 0
    assert again == fields


def test_the_model_of_a_stopped_engine_is_retired(serve: Callable[..., Running]) -> None:
    server = serve()

    def lifecycles() -> set[str]:
        listed = server.get("/v1/models").json()["data"]
        return {model["lifecycle"] for model in [*listed, server.get("/v1/models/fake").json()]}

    assert lifecycles() == {"active"}
    server.engine.close()
    assert lifecycles() == {"retired"}


def test_another_model_is_not_found(shared: Running) -> None:
    for name in ("other", "with/slash"):
        response = shared.get(f"/v1/models/{name}")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"


def test_health_without_a_body(shared: Running) -> None:
    response = httpx.head(shared.url + "/health", timeout=PATIENCE)
    assert (response.status_code, response.content) == (200, b"")


def test_health(shared: Running) -> None:
    response = shared.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_health_says_whether_the_file_is_still_what_was_loaded(
    serve: Callable[..., Running], tmp_path: Path
) -> None:
    server, path = serve(), tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    model = server.engine.model
    info = replace(model.info, path=path, stamps={path: FileStamp.of(path.stat())})
    server.engine.model = replace(model, info=info)

    def state() -> str:
        response = server.get("/health")
        assert response.status_code == 200
        assert response.json() == {"status": "ok", "model_file": response.json()["model_file"]}
        return str(response.json()["model_file"])

    assert state() == "unchanged"
    path.write_bytes(b"weight")
    assert state() == "changed"
    path.unlink()
    assert state() == "missing"


@pytest.mark.parametrize("path", ["/health", "/nothing"])
def test_every_response_has_a_request_id(shared: Running, path: str) -> None:
    ids = {shared.get(path).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    mine = shared.get(path, headers={"x-request-id": "abc-1"})
    assert mine.headers["x-request-id"] == mine.headers["request-id"] == "abc-1"
    assert mine.headers.get_list("x-request-id") == ["abc-1"]
    long = shared.get(path, headers={"x-request-id": "a" * 129})
    assert long.headers["x-request-id"].startswith("req_")


def test_the_api_describes_itself(shared: Running) -> None:
    described = shared.get("/openapi.json").json()
    assert described["paths"].keys() >= {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"),
        *("/v1/models", "/health"),
    }
    body = described["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert "messages" in schema["required"]
    assert schema["additionalProperties"] is False


@pytest.mark.extensions
def test_the_description_has_the_routes_of_extensions(shared: Running) -> None:
    described = shared.get("/openapi.json").json()
    assert described["paths"].keys() >= {
        *("/infill", "/tokenize", "/detokenize", "/apply_template", "/apply-template"),
        *("/v1/messages", "/v1/messages/count_tokens", "/metrics", "/slots"),
    }
