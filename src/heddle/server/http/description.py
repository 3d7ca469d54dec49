"""The OpenAPI description: adds bodies, statuses and errors to the routes.

Routes read their bodies themselves and answer with bytes, so FastAPI knows neither. Each route
declares the schema of its body (`takes`). The statuses of a route follow from its body, method and
path. The API of a route defines the shape of its errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from heddle.server.http.access import OPEN_PATHS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence, Set

    from pydantic import BaseModel

    from heddle.server.http.keys import Keys

Json = dict[str, Any]

_COMPONENTS = "#/components/schemas/"

_ALWAYS = {500: "The server failed. Other requests continue."}
_WITH_KEYS = {401: "The request has no valid API key."}
_ADMIN = {403: "The request may not use admin routes. The message says what allows it."}
_WITH_NAME = {
    404: "The request names a model that is not loaded.",
    503: "The server is stopping, or the model cannot answer now.",
}
_FETCHING = ("/v1/models/load", "/v1/models/quantize", "/api/pull")
"""The routes whose `model` may be a name that the server does not know yet."""
_NAMING = {"model", "instances"}
"""Fields that hold the name of a model, or whole requests that do."""
_GENERATING = {"deadline", "options", "instances"}
"""Fields that hold the deadline of a request, or more fields with it."""
_WITH_DEADLINE = {504: "The request has not ended within its `deadline`."}
_WITH_CHANGE = {503: "The server is stopping."}
_WITH_BODY = {
    400: "A field is unknown or has an invalid value. The message names the field.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    415: "The body is not declared as application/json.",
    429: "Slots and queue are full, or unread answers take too much memory.",
}
_RETRY_AFTER = {"retry-after": {"description": "seconds", "schema": {"type": "string"}}}
_HEADERS: dict[int, Json] = {429: _RETRY_AFTER, 503: _RETRY_AFTER}


class Application(FastAPI):
    """FastAPI with a complete OpenAPI description."""

    def __init__(
        self,
        models: Callable[[], Sequence[str]],
        error_schemas: Mapping[str, type[BaseModel]],
        streams: Mapping[str, str],
        admin: Set[tuple[str, str]],
        keys: Keys,
    ) -> None:
        """
        Args:
            models: gets the names of models in requests; none if the server accepts any name.
            error_schemas: schema of errors by path.
            streams: media type of streams by path.
            admin: path and method, in lower case, of each admin route.
            keys: the keys of the server.
        """
        super().__init__(title="Heddle", summary="One forward pass per step carries everyone.")
        self._models = models
        self._error_schemas = error_schemas
        self._streams = streams
        self._admin = admin
        self._keys = keys

    def use(self, keys: Keys) -> None:
        """Describe a server with these keys from now on."""
        self._keys = keys
        self.openapi_schema = None

    def openapi(self) -> Json:
        """The OpenAPI description. The first call makes it."""
        known = self.openapi_schema  # another thread may drop it
        if known is None:
            known = description = super().openapi()
            _complete(
                description,
                self._models(),
                self._error_schemas,
                self._streams,
                self._admin,
                self._keys,
            )
        return known


def _complete(
    description: Json,
    models: Sequence[str],
    error_schemas: Mapping[str, type[BaseModel]],
    streams: Mapping[str, str],
    admin: Set[tuple[str, str]],
    keys: Keys,
) -> None:
    """Add models, errors, streams and keys to FastAPI's description, in place."""
    components = description["components"]
    for unused in ("HTTPValidationError", "ValidationError"):  # from FastAPI; never sent
        components["schemas"].pop(unused, None)
    for error in dict.fromkeys(error_schemas.values()):
        shape = error.model_json_schema(ref_template=_COMPONENTS + "{model}")
        components["schemas"] |= shape.pop("$defs", {}) | {error.__name__: shape}
    if keys.has_admin or not keys.admits_all:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            is_admin = (path, method) in admin
            closed = _needs_key(path, keys, is_admin=is_admin)
            body = _body_of(operation, components["schemas"])
            if path not in _FETCHING:
                _name_model(operation, body, models)
            statuses = _statuses(path, method, operation, body, closed=closed)
            statuses |= _ADMIN if is_admin else {}
            _add_errors(operation, statuses, error_schemas[path])
            if "stream" in body.get("properties", {}):
                operation["responses"]["200"]["content"][streams[path]] = {}
            if closed:
                operation["security"] = [{"bearer": []}, {"x-api-key": []}]


def _needs_key(path: str, keys: Keys, *, is_admin: bool) -> bool:
    if is_admin and keys.has_admin:
        return True
    return not keys.admits_all and path not in OPEN_PATHS


def _statuses(
    path: str, method: str, operation: Json, body: Json, *, closed: bool
) -> dict[int, str]:
    """The error statuses of an operation, each with its description."""
    statuses = dict(_ALWAYS)
    if closed:
        statuses |= _WITH_KEYS
    if body:
        statuses |= _WITH_BODY
    if method != "get":
        statuses |= _WITH_CHANGE
    asked = {one["name"] for one in operation.get("parameters", ())}
    fields = body.get("properties", {}).keys()
    if "{" in path or "model" in asked or fields & _NAMING:
        statuses |= _WITH_NAME
    if fields & _GENERATING:
        statuses |= _WITH_DEADLINE
    return statuses


def _add_errors(operation: Json, statuses: Mapping[int, str], schema: type[BaseModel]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    for status, words in sorted(statuses.items()):
        responses[str(status)] = {
            "description": words,
            "content": {"application/json": {"schema": {"$ref": _COMPONENTS + schema.__name__}}},
            "headers": _HEADERS.get(status, {}),
        }


def _body_of(operation: Json, schemas: Json) -> Json:
    """The schema of an operation's body; empty without a body. Moves its definitions to `schemas`.

    A definition's new name begins with the name of its body, because two vendors may have different
    definitions under one name, such as `TextPart`.
    """
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return {}
    schema: Json = content["application/json"]["schema"]
    local = schema.pop("$defs", {})
    for part in _parts([schema, local]):
        if "$ref" in part:
            part["$ref"] = f"{_COMPONENTS}{schema['title']}.{part['$ref'].removeprefix('#/$defs/')}"
    schemas |= {f"{schema['title']}.{name}": definition for name, definition in local.items()}
    return schema


def _name_model(operation: Json, body: Json, models: Sequence[str]) -> None:
    """List the model's names in every field and path parameter that names a model."""
    if not models:
        return
    if field := body.get("properties", {}).get("model"):
        optional = "model" not in body.get("required", ())
        field.clear()
        field["enum"] = [*models, "", None] if optional else [*models, ""]
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            parameter["schema"]["enum"] = [*models]
        elif parameter["name"] == "model":
            parameter["schema"]["enum"] = [*models, ""]  # the default model


def _parts(value: object) -> Iterator[Json]:
    """All objects inside of a schema."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _parts(inner)
