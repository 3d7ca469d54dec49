"""The table of vendors' fields: schemas, constraints and answers follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from heddle.extensions.anthropic import schemas as messages
from heddle.extensions.cohere.embed import EmbedRequest as CohereEmbedRequest
from heddle.extensions.grammars.fields import StructuredOutputs
from heddle.extensions.llamacpp import completion, infill
from heddle.extensions.llamacpp.apply_template import ApplyTemplateRequest
from heddle.extensions.llamacpp.embedding import NativeEmbeddingRequest
from heddle.extensions.ollama import schemas as ollama
from heddle.extensions.ollama.administration import DeleteRequest, PullRequest
from heddle.extensions.ollama.embeddings import EmbeddingRequest as OlderEmbeddingRequest
from heddle.extensions.ollama.embeddings import EmbedRequest
from heddle.extensions.ollama.models import ShowRequest
from heddle.extensions.vllm import classify, pooling, rerank, score, tokenize
from heddle.parameters import Api
from heddle.sampling_params import all_parameters
from heddle.server.api.openai import embeddings, response_schemas, schemas
from heddle.server.generate import chat_fields, fields
from heddle.server.generate.vendor_fields.row import Outcome
from heddle.server.generate.vendor_fields.table import CONSTRAINTS, VENDORS, rows_of
from heddle.server.http.hints import HEADER

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fake_server import Running
    from heddle.server.generate.vendor_fields.row import Row


class AnyPart(chat_fields.TextPart, chat_fields.ImagePart):  # type: ignore[misc]
    """Both kinds of parts."""


OWN = {"open_schemas"}
"""Fields that only this server has."""
BODIES: list[tuple[Api, str, type[BaseModel]]] = [
    (Api.CHAT, "", schemas.ChatRequest),
    (Api.COMPLETIONS, "", schemas.CompletionRequest),
    (Api.RESPONSES, "", response_schemas.ResponsesRequest),
    (Api.MESSAGES, "", messages.MessagesRequest),
    (Api.COUNT, "", messages.CountRequest),
    (Api.EMBEDDINGS, "", embeddings.EmbeddingRequest),
    (Api.RERANK, "", rerank.RerankRequest),
    (Api.COHERE_EMBED, "", CohereEmbedRequest),
    (Api.SCORE, "", score.ScoreRequest),
    (Api.CLASSIFY, "", classify.ClassifyRequest),
    (Api.POOLING, "", pooling.PoolingRequest),
    (Api.TOKENIZE, "", tokenize.TokenizeRequest),
    (Api.CHAT, "messages", chat_fields.ChatMessage),
    (Api.CHAT, "messages.content", AnyPart),
    (Api.CHAT, "messages.content.image_url", chat_fields.ImageAddress),
    (Api.CHAT, "tools", chat_fields.FunctionTool),
    (Api.CHAT, "tools.function", chat_fields.Function),
    (Api.CHAT, "thinking", schemas.Thinking),
    (Api.CHAT, "stream_options", fields.StreamOptions),
    (Api.CHAT, "structured_outputs", StructuredOutputs),
    (Api.RESPONSES, "reasoning", response_schemas.ReasoningConfig),
    (Api.RESPONSES, "text", response_schemas.TextConfig),
    (Api.RESPONSES, "tools", response_schemas.FunctionTool),
    (Api.RESPONSES, "input.message", response_schemas.MessageItem),
    (Api.RESPONSES, "input.reasoning", response_schemas.ReasoningItem),
    (Api.MESSAGES, "tools", messages.Tool),
    (Api.MESSAGES, "thinking", messages.Thinking),
    (Api.MESSAGES, "output_config", messages.OutputConfig),
    (Api.OLLAMA_CHAT, "", ollama.ChatRequest),
    (Api.OLLAMA_CHAT, "messages", ollama.Message),
    (Api.OLLAMA_CHAT, "tools", ollama.Tool),
    (Api.OLLAMA_GENERATE, "", ollama.GenerateRequest),
    (Api.OLLAMA_GENERATE, "options", ollama.Options),
    (Api.OLLAMA_EMBED, "", EmbedRequest),
    (Api.OLLAMA_EMBEDDINGS, "", OlderEmbeddingRequest),
    (Api.OLLAMA_SHOW, "", ShowRequest),
    (Api.OLLAMA_PULL, "", PullRequest),
    (Api.OLLAMA_DELETE, "", DeleteRequest),
    (Api.EMBEDDING, "", NativeEmbeddingRequest),
    (Api.APPLY_TEMPLATE, "", ApplyTemplateRequest),
    (Api.DETOKENIZE, "", tokenize.DetokenizeRequest),
]


def declared(schema: type[BaseModel]) -> set[str]:
    return {one.alias or name for name, one in schema.model_fields.items()} - OWN


def known(api: Api, within: str = "") -> set[str]:
    place = "options" if api & Api.OLLAMA else ""
    parameters = {name for row in all_parameters() if within == place for name in row.names(api)}
    return {row.name for row in rows_of(api, within)} | parameters


@pytest.mark.parametrize(("api", "within", "schema"), BODIES)
def test_a_schema_has_exactly_the_fields_of_the_table(
    api: Api, within: str, schema: type[BaseModel]
) -> None:
    assert declared(schema) == known(api, within)


def test_both_routes_of_llamacpp_have_the_fields_of_the_table() -> None:
    both = (completion.NativeCompletionRequest, infill.InfillRequest)
    assert set.union(*map(declared, both)) == known(Api.LLAMACPP)


def test_a_field_has_one_row() -> None:
    rows = [row for of_vendor in VENDORS.values() for row in of_vendor]
    parameters = [
        (f"options.{name}" if api & Api.OLLAMA else name, api)
        for row in all_parameters()
        for api in Api
        for name in row.names(api)
    ]
    cells = [(row.path, api) for row in rows for api in Api if api in row.apis]
    assert len(set(cells)) == len(cells)
    assert not set(parameters) & set(cells)


def test_every_decision_has_its_reason() -> None:
    for row in (row for rows in VENDORS.values() for row in rows):
        assert row.doc or row.outcome is Outcome.SERVED, row.path
        assert not (row.constrains and row.outcome is Outcome.IGNORED), row.path


ASKED = [{"role": "user", "content": "hello"}]
SMALL: dict[Api, tuple[str, dict[str, Any]]] = {
    Api.CHAT: ("/v1/chat/completions", {"messages": ASKED, "max_tokens": 1}),
    Api.COMPLETIONS: ("/v1/completions", {"prompt": "hello", "max_tokens": 1}),
    Api.RESPONSES: ("/v1/responses", {"input": "hello", "max_output_tokens": 1}),
    Api.MESSAGES: ("/v1/messages", {"model": "fake", "messages": ASKED, "max_tokens": 1}),
    Api.COUNT: ("/v1/messages/count_tokens", {"model": "fake", "messages": ASKED}),
    Api.EMBEDDINGS: ("/v1/embeddings", {"input": "hello"}),
    Api.OLLAMA_CHAT: ("/api/chat", {"model": "fake", "messages": ASKED, "stream": False}),
    Api.OLLAMA_GENERATE: ("/api/generate", {"model": "fake", "prompt": "hello", "stream": False}),
    Api.OLLAMA_EMBED: ("/api/embed", {"model": "fake", "input": "hello"}),
    Api.OLLAMA_EMBEDDINGS: ("/api/embeddings", {"model": "fake", "prompt": "hello"}),
    Api.OLLAMA_SHOW: ("/api/show", {"model": "fake"}),
}
VALUES = {
    bool: (True, False),
    int: (3,),
    float: (0.5,),
    str: ("x",),
    list[str]: (["x"],),
    list[Any]: (["x"],),
    dict[str, str]: ({"a": "x"},),
    dict[str, Any]: ({"a": 1},),
    Any: ({"a": 1},),
}


def value_of(row: Row) -> Any:
    """A value of the row's type that is not neutral."""
    values = VALUES.get(row.kind, ("priority",))
    return next(value for value in values if value not in row.neutral)


@pytest.mark.parametrize("api", SMALL)
def test_ignored_fields_are_named(shared: Running, api: Api) -> None:
    """All at once, since each alone takes a request."""
    path, body = SMALL[api]
    rows = [row for row in rows_of(api) if row.outcome is Outcome.IGNORED]
    answer = shared.post(path, body | {row.name: value_of(row) for row in rows})
    assert answer.status_code == 200, answer.json()
    assert sorted(answer.headers[HEADER].split(", ")) == sorted(row.name for row in rows)
    neutral = {row.name: row.neutral[-1] for row in rows if row.neutral}
    answer = shared.post(path, body | neutral | {row.name: None for row in rows if not row.neutral})
    assert (answer.status_code, HEADER in answer.headers) == (200, False)


@pytest.mark.parametrize("api", SMALL)
def test_refused_fields_are_named(shared: Running, api: Api) -> None:
    path, body = SMALL[api]
    rows = [row for row in rows_of(api) if row.outcome is Outcome.REFUSED]
    for row in rows:
        answer = shared.post(path, body | {row.name: "no such value"})
        error = answer.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert answer.status_code == 400
        assert f"{row.name} is not supported by this server" in message
        assert row.instead in message
    neutral = {row.name: row.neutral[-1] for row in rows if row.neutral}
    answer = shared.post(path, body | neutral)
    assert (answer.status_code, HEADER in answer.headers) == (200, False), answer.json()


def test_lenient_servers_drop_no_refused_constraint() -> None:
    refused = {row.name for rows in VENDORS.values() for row in rows if row.constrains}
    assert refused <= CONSTRAINTS
    assert "temperature" not in CONSTRAINTS
