"""The description of routes in `/openapi.json`. tests/conformance checks that it is true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from heddle import SamplingParams
from heddle.errors import InvalidRequestError
from heddle.parameters import Number
from heddle.sampling_params import all_parameters
from heddle.server.http.access import OPEN_PATHS
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_server import Running

COMPONENTS = "#/components/schemas/"


def operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_the_schema_of_a_body_is_made_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Body(Schema):
        text: str

    made: list[str] = []
    monkeypatch.setattr(Body, "model_json_schema", lambda: made.append("now") or {"type": "object"})
    entry = takes(Body)
    assert entry and not made
    content = {"application/json": {"schema": {"type": "object"}}}
    assert dict(entry.items()) == {"requestBody": {"required": True, "content": content}}


@pytest.fixture(scope="module")
def description(shared: Running) -> dict[str, Any]:
    return shared.get("/openapi.json").json()


def body_of(operation: dict[str, Any]) -> dict[str, Any]:
    return operation["requestBody"]["content"]["application/json"]["schema"]


def test_what_is_referred_to_is_there(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    referred = set(references(description))
    assert referred
    assert {name.removeprefix(COMPONENTS) for name in referred} <= schemas.keys()


def test_every_route_that_takes_something_says_what(description: dict[str, Any]) -> None:
    for path, method, operation in operations(description):
        assert ("requestBody" in operation) == (method == "post" or path == "/api/delete"), path
        if "requestBody" in operation:
            closed = body_of(operation).get("additionalProperties") is False
            assert closed or path == "/lora-adapters"  # its body is a list
            statuses = operation["responses"].keys()
            assert {"200", "400", "408", "413", "415", "429", "500", "503"} <= statuses
            properties = body_of(operation).get("properties", {})
            assert ("404" in statuses) == bool({"model", "instances"} & properties.keys())
        assert "422" not in operation["responses"]


def test_errors_have_the_shape_of_the_path_s_vendor(description: dict[str, Any]) -> None:
    for path, _, operation in operations(description):
        shape = operation["responses"]["500"]["content"]["application/json"]["schema"]["$ref"]
        names = {"/v1/messages": "AnthropicError", "/api/": "OllamaError"}
        of_llama_cpp = (
            "/completion",
            "/embedding",
            "/infill",
            "/apply",
            "/props",
            "/lora",
            "/slots/",
        )
        names |= dict.fromkeys(of_llama_cpp, "NativeError")
        of = (name for start, name in names.items() if path.startswith(start))
        assert shape == COMPONENTS + next(of, "ErrorBody")


def test_streams_are_told_of(description: dict[str, Any]) -> None:
    streamed = {
        path
        for path, _, operation in operations(description)
        if "text/event-stream" in operation["responses"]["200"]["content"]
    }
    assert streamed >= {"/v1/chat/completions", "/v1/completions", "/v1/responses"}
    assert "/v1/embeddings" not in streamed
    if "/tokenize" in description["paths"]:  # extensions are installed
        assert streamed >= {"/v1/messages", "/infill"}
        assert "/tokenize" not in streamed


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_the_model_is_named_in_bodies(description: dict[str, Any], path: str) -> None:
    fields = body_of(description["paths"][path]["post"])["properties"]
    assert fields["model"]["enum"] == ["fake", "", None]


def test_the_model_is_named_in_paths(description: dict[str, Any]) -> None:
    [name] = description["paths"]["/v1/models/{name}"]["get"]["parameters"]
    assert name["schema"]["enum"] == ["fake"]


def test_fields_that_must_be_neutral_say_with_which_values(description: dict[str, Any]) -> None:
    fields = body_of(description["paths"]["/v1/chat/completions"]["post"])["properties"]
    assert fields["web_search_options"]["enum"] == [None]
    assert fields["modalities"]["enum"] == [None, ["text"]]


def test_ranges_are_those_of_the_sampling_parameters(description: dict[str, Any]) -> None:
    fields = body_of(description["paths"]["/v1/completions"]["post"])["properties"]
    assert fields["top_p"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert fields["mirostat"]["anyOf"][0]["multipleOf"] == 2
    assert fields["top_n_sigma"]["anyOf"][0]["anyOf"] == [
        {"minimum": 0, "maximum": 1000},
        {"const": -1},
    ]
    assert fields["repeat_penalty"]["anyOf"][0]["minimum"] == 0.01


RANGES = {row.name: row.kind for row in all_parameters() if isinstance(row.kind, Number)}


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_a_range_are_where_they_are_said_to_be(name: str) -> None:
    allowed = RANGES[name]
    beyond = allowed.low - (2 if allowed.extra is not None else 1)
    outside = [beyond, *([allowed.low] if allowed.excludes_low else [])]
    inside = [] if allowed.excludes_low else [allowed.low]
    if allowed.high < 2**31:
        outside.append(allowed.high + 1)
        inside.append(allowed.high)
    if allowed.extra is not None:
        inside.append(allowed.extra)
    for value in inside:
        taken = SamplingParams.by_name(**{name: value}).value(name)
        unlimited = (name, value) == ("max_tokens", -1)
        assert taken == (None if unlimited else value) or name == "min_tokens"
    for value in outside:
        with pytest.raises(InvalidRequestError, match=f"{name} must be"):
            SamplingParams.by_name(**{name: value})


def test_keys_are_told_of_where_they_are_needed(
    serve: Callable[..., Running], description: dict[str, Any]
) -> None:
    assert all("401" not in operation["responses"] for *_, operation in operations(description))
    server = serve(api_key=("sk-1",))
    closed = server.get("/openapi.json", headers={"x-api-key": "sk-1"}).json()
    assert closed["components"]["securitySchemes"].keys() == {"bearer", "x-api-key"}
    for path, _, operation in operations(closed):
        assert ("401" in operation["responses"]) == (path not in OPEN_PATHS)
        assert ("security" in operation) == (path not in OPEN_PATHS)


@pytest.mark.parametrize(
    ("path", "methods"), [("/health", "GET, HEAD"), ("/v1/prefix_cache", "DELETE, POST")]
)
def test_a_wrong_method_is_told_the_right_ones(shared: Running, path: str, methods: str) -> None:
    answer = httpx.patch(shared.url + path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)
