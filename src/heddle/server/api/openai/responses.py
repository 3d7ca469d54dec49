"""OpenAI's `/v1/responses`, without storage: each request has the whole conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from heddle.errors import InvalidRequestError
from heddle.server.api.openai.completion_writers import AnswerOptions
from heddle.server.api.openai.response_messages import messages_of, tool_use
from heddle.server.api.openai.response_schemas import LOGPROBS, ResponsesRequest
from heddle.server.api.openai.response_writer import ResponseWriter
from heddle.server.api.openai.token_counts import add_count
from heddle.server.generate.chat import Chat, compose, template_variables
from heddle.server.generate.constraints import format_grammar, grammar_of
from heddle.server.generate.parameters import sampling_params
from heddle.server.generate.reasoning import NO_WISH, ReasoningFields
from heddle.server.http.encoding import encode

if TYPE_CHECKING:
    from starlette.types import Scope

    from heddle.grammars import Grammar
    from heddle.sampling_params import SamplingParams
    from heddle.server.api.openai.response_schemas import FunctionTool
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served, Service
    from heddle.server.generate.usage import Json


def routes(service: Service, dispatcher: Dispatcher) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    path = "/v1/responses"
    dispatcher.add_route(
        router,
        path,
        ResponsesRequest,
        from_responses,
        "Generate the next items of a conversation.",
    )
    add_count(router, service, f"{path}/input_tokens", ResponsesRequest, from_responses)
    return router


def from_responses(
    body: ResponsesRequest, served: Served, scope: Scope
) -> tuple[GenerationRequest, ResponseWriter]:
    """Translate a body into its request and the writer of its answer.

    Raises:
        InvalidRequestError: a value cannot be served, the model has no chat template, its template
            refuses the messages, or the prompt is too long for the context.
    """
    params = _params(body, served)
    effort = body.reasoning.effort if body.reasoning else None
    chat = Chat(
        messages_of(body),
        params,
        tool_use(body),
        NO_WISH if effort is None else ReasoningFields(effort, "reasoning.effort"),
        template_variables(body.chat_template_kwargs),
        open_schemas=body.open_schemas,
    )
    request, reading = compose(chat, served, scope, stream=bool(body.stream))
    options = AnswerOptions(logprobs=params.logprobs, reading=reading)
    template = served.engine.model.template
    asks_effort = template is not None and template.dialect.reasoning.efforts
    repeated = _repeated(body, params, effort if asks_effort else None)
    return request, ResponseWriter(served.name, served.engine.model.tokenizer, repeated, options)


def _params(body: ResponsesRequest, served: Served) -> SamplingParams:
    """Sampling parameters of a request.

    Raises:
        InvalidRequestError: a value is out of range, or two fields contradict each other.
    """
    shown = LOGPROBS in (body.include or ())
    if body.top_logprobs and not shown:
        raise InvalidRequestError(
            f"top_logprobs needs {LOGPROBS!r} in include, got {body.include!r}",
            param="top_logprobs",
        )
    return sampling_params(
        body,
        served,
        logprobs=(body.top_logprobs or 0) if shown else None,
        grammar=grammar_of(body, _text_format(body)),
    )


def _text_format(body: ResponsesRequest) -> Grammar | None:
    """The grammar of `text.format`.

    Raises:
        InvalidRequestError: a "json_schema" has no schema, or another type has a schema.
        GrammarError: the schema is too long.
    """
    form = body.form
    if form is None:
        return None
    return format_grammar("text.format", form.type, form.schema_, "schema")


def _repeated(body: ResponsesRequest, params: SamplingParams, effort: str | None) -> bytes:
    """JSON of the request's fields that the response repeats, with the values that are in effect.

    Raises:
        InvalidRequestError: a schema has NaN or an infinite number. The parser of bodies accepts
            them, but JSON does not have them.
    """
    form = body.form
    fields: Json = {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": effort, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": {"format": form.model_dump(by_alias=True) if form else {"type": "text"}},
        "tool_choice": _tool_choice(body),
        "tools": [_tool(tool) for _, tool in body.functions],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "background": False,
    }
    try:
        return encode(fields)
    except ValueError:
        raise InvalidRequestError(
            "tools and text.format must not have NaN or infinite numbers; use finite numbers"
        ) from None


def _tool_choice(body: ResponsesRequest) -> Json | str:
    choice = body.tool_choice or "auto"
    return choice if isinstance(choice, str) else choice.model_dump()


def _tool(tool: FunctionTool) -> Json:
    return tool.model_dump() | {"strict": bool(tool.strict)}
