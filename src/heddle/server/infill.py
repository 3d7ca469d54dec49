"""llama.cpp's `/infill`: what belongs between two texts, for editors. Its fields, its answers.

The sampling fields are those of the other endpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server import intake
from heddle.server.answers import Answer
from heddle.server.encoding import encode, event
from heddle.server.errors import error_body
from heddle.server.fields import only
from heddle.server.schemas import GenerationRequest, takes
from heddle.text.parsing.parts import Text
from heddle.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.server.answering import Answering
    from heddle.server.answers import Json
    from heddle.server.service import Service
    from heddle.text.parsing.parts import Part
    from heddle.types import Delta, Output, TokenLogprob


class InfillRequest(GenerationRequest):
    """Body of `POST /infill`. `prompt` is how the filling begins."""

    input_prefix: str
    input_suffix: str
    prompt: str | None = None
    n_predict: int | None = None

    input_extra: Annotated[Any, only([])] = None
    cache_prompt: Annotated[Any, only(True)] = None
    n: Annotated[Any, only(1)] = None
    stream_options: Annotated[Any, only({})] = None


def routes(service: Service, answering: Answering) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()

    @router.post("/infill", openapi_extra=takes(InfillRequest))
    async def infill(request: Request) -> Response:
        """Text between a prefix and a suffix."""
        job = await service.bodies.take(
            request, InfillRequest, lambda asked: intake.infill_job(asked, service)
        )
        return await answering.answer(request, InfillAnswer(service.engine.model.info.id), job)

    return router


class InfillAnswer(Answer):
    """One text with what llama.cpp tells beside it; as events, its pieces and then the rest."""

    prefix = "infill-"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._stop: Json = {}

    def whole(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        [output] = outputs
        return [encode(self._last(output.text, _stop(output.finish, output.stop), totals))]

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        assert isinstance(part, Text), "nothing else is looked for"
        return event({"index": 0, "content": part.text, "stop": False})

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        assert last.finish is not None
        self._stop = _stop(last.finish, last.stop)
        return b""

    def ending(self, totals: Json) -> bytes:
        return event(self._last("", self._stop, totals))

    def failure(self, error: HeddleError) -> bytes:
        return event(error_body(error))

    def _last(self, content: str, stop: Json, totals: Json) -> Json:
        usage = totals["usage"]
        return {
            "index": 0,
            "content": content,
            "stop": True,
            "model": self._model,
            "tokens_predicted": usage["completion_tokens"],
            "tokens_evaluated": usage["prompt_tokens"],
            "tokens_cached": usage["prompt_tokens_details"]["cached_tokens"],
            "truncated": False,
            **stop,
            "timings": totals["timings"],
        }


def _stop(finish: FinishReason, word: str | None) -> Json:
    """Why the text ended, in llama.cpp's words."""
    kind = "limit" if finish is FinishReason.LENGTH else "eos"
    return {"stop_type": kind if word is None else "word", "stopping_word": word or ""}
