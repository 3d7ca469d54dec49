"""OpenAI's `/v1/responses`, which keeps nothing: a request brings its whole conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import InvalidRequestError
from heddle.server.api.openai.completion_writers import AnswerOptions
from heddle.server.api.openai.response_messages import tool_use, written
from heddle.server.api.openai.response_schemas import LOGPROBS, ResponsesRequest
from heddle.server.api.openai.response_writer import ResponseAnswer
from heddle.server.api.openai.schemas import takes
from heddle.server.generate.chat import chat_prompt
from heddle.server.generate.constraints import text_format
from heddle.server.generate.request import Job, for_reading, sampling_fields
from heddle.server.generate.tools import closing, suspects
from heddle.server.http.encoding import encode
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from heddle.server.api.openai.completion_writers import Json
    from heddle.server.api.openai.response_schemas import FunctionTool
    from heddle.server.generate.dispatch import Answering
    from heddle.server.generate.service import Service


def routes(service: Service, answering: Answering) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()
    tokenizer = service.engine.model.tokenizer

    def digest(asked: ResponsesRequest) -> tuple[Job, bytes]:
        job = _job(asked, service)
        return job, _repeated(asked, job.params)

    @router.post("/v1/responses", openapi_extra=takes(ResponsesRequest))
    async def responses(request: Request) -> Response:
        """The next items of a conversation."""
        job, repeated = await service.bodies.take(request, ResponsesRequest, digest)
        writer = ResponseAnswer(job.model, tokenizer, repeated, job.options)
        return await answering.answer(request, writer, job)

    return router


def _job(body: ResponsesRequest, service: Service) -> Job:
    """What a request asks for.

    Raises:
        InvalidRequestError: a value cannot be served, the model has no chat template, its template
            refuses the messages, or they are too long for the context.
    """
    model = service.model_name(body.model)
    params, use = closing(_params(body), tool_use(body), body.open_schemas, service)
    prompt, reading = chat_prompt(service.engine, written(body, use), use)
    params = for_reading(params, use, reading, service)
    options = AnswerOptions(logprobs=params.logprobs, reading=reading)
    return Job(model, [prompt], params, 1, bool(body.stream), options, suspects(use))


def _params(body: ResponsesRequest) -> SamplingParams:
    """Sampling parameters of a request.

    Raises:
        InvalidRequestError: a value is out of range, or two fields contradict each other.
    """
    fields = sampling_fields(body, text_format(body.form))
    if body.max_output_tokens is not None:
        fields["max_tokens"] = body.max_output_tokens
    if LOGPROBS in (body.include or ()):
        fields["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise InvalidRequestError(
            "top_logprobs needs include to have 'message.output_text.logprobs', got"
            f" {body.include!r}",
            param="top_logprobs",
        )
    return SamplingParams(**fields)


def _repeated(body: ResponsesRequest, params: SamplingParams) -> bytes:
    """JSON of the fields of a request that its response repeats, with the values that hold.

    Raises:
        InvalidRequestError: a schema holds a number that JSON cannot say, which bodies may.
    """
    form = body.form
    fields: Json = {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": {"format": form.model_dump(by_alias=True) if form else {"type": "text"}},
        "tool_choice": _tool_choice(body),
        "tools": [_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "background": False,
    }
    try:
        return encode(fields)
    except ValueError:
        raise InvalidRequestError(
            "tools and text.format must not hold NaN or numbers that are infinite"
        ) from None


def _tool_choice(body: ResponsesRequest) -> Json | str:
    choice = body.tool_choice or "auto"
    return choice if isinstance(choice, str) else choice.model_dump()


def _tool(tool: FunctionTool) -> Json:
    return tool.model_dump() | {"strict": bool(tool.strict)}
