"""llama.cpp's `/infill`: what belongs between two texts, for editors. Its fields, its answers.

The sampling fields are those of the other endpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.api.openai.completion_writers import Answer, timings
from heddle.server.api.openai.schemas import (
    MAX_CHOICES,
    MAX_ITEMS,
    GenerationRequest,
    Schema,
    takes,
)
from heddle.server.generate import request as intake
from heddle.server.http.encoding import encode, event
from heddle.server.http.errors import error_body
from heddle.server.http.fields import FIRST_FAULT, only
from heddle.server.http.hints import ignore
from heddle.text.parsing.parts import Text
from heddle.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.server.api.openai.completion_writers import Json
    from heddle.server.generate.dispatch import Answering
    from heddle.server.generate.service import Service
    from heddle.text.parsing.parts import Part
    from heddle.types import Delta, Output, TokenLogprob, Usage


class ExtraFile(Schema):
    """A file, or a part of one, that belongs to the text. `time` is when an editor took it."""

    text: str
    filename: str | None = None
    time: Any = None


class InfillRequest(GenerationRequest):
    """Body of `POST /infill`. `prompt` is how the filling begins."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None
    prompt: str | None = None
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    response_fields: Annotated[list[str], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None

    lora: Annotated[Any, only([])] = None
    stream_options: Annotated[Any, only({})] = None


def routes(service: Service, answering: Answering) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()

    @router.post("/infill", openapi_extra=takes(InfillRequest))
    async def infill(request: Request) -> Response:
        """Text between a prefix and a suffix."""

        def digest(asked: InfillRequest) -> tuple[intake.Job, InfillAnswer]:
            job, left_out = intake.infill_job(asked, service)
            if left_out:
                ignore(request.scope, f"input_extra (first {left_out})")
            return job, InfillAnswer(job.model, asked.response_fields, truncated=left_out > 0)

        job, writer = await service.bodies.take(request, InfillRequest, digest)
        return await answering.answer(request, writer, job)

    return router


class InfillAnswer(Answer):
    """One text with what llama.cpp tells beside it; as events, its pieces and then the rest.

    Several texts are a list.
    """

    prefix = "infill-"

    def __init__(self, model: str, fields: Sequence[str] | None, *, truncated: bool) -> None:
        """`fields` are those to tell, all of them if None or empty; see `_chosen`. `truncated`
        says that a part of the request is not in the prompt."""
        super().__init__(model)
        self._fields = fields
        self._truncated = truncated

    def whole(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        told = [
            self._last(index, output.text, _stop(output.finish, output.stop), output.usage)
            for index, output in enumerate(outputs)
        ]
        return [encode(told if len(told) > 1 else told[0])]

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        assert isinstance(part, Text), "nothing else is looked for"
        return event({"index": index, "content": part.text, "stop": False})

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        assert last.finish is not None
        assert last.usage is not None
        return event(self._last(index, "", _stop(last.finish, last.stop), last.usage))

    def ending(self, totals: Json) -> bytes:
        return b""

    def failure(self, error: HeddleError) -> bytes:
        return event(error_body(error))

    def _last(self, index: int, content: str, stop: Json, usage: Usage) -> Json:
        told = {
            "index": index,
            "content": content,
            "stop": True,
            "model": self._model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "truncated": self._truncated,
            **stop,
            "timings": timings([usage]),
        }
        return _chosen(told, self._fields) if self._fields else told


def _chosen(told: Json, fields: Sequence[str]) -> Json:
    """The fields that `response_fields` names, under these names; those that are not there are left
    out. A name such as `timings/prompt_n` is that of a field inside of another one."""
    flat = told | {f"timings/{name}": value for name, value in told["timings"].items()}
    return {name: flat[name] for name in fields if name in flat}


def _stop(finish: FinishReason, word: str | None) -> Json:
    """Why the text ended, in llama.cpp's words."""
    kind = "limit" if finish is FinishReason.LENGTH else "eos"
    return {"stop_type": kind if word is None else "word", "stopping_word": word or ""}
