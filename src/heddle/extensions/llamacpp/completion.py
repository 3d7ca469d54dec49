"""llama.cpp's `/completion` and `/completions`: continues prompts of texts and token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.extensions.llamacpp.fields import NativeFields
from heddle.extensions.llamacpp.requests import choices_of, native_answer, native_params
from heddle.parameters import Api
from heddle.server.generate.mixed_prompts import Pictured, Prompts, prompts_in, tokens_of
from heddle.server.generate.parameters import offers
from heddle.server.generate.request import tokens_in
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from starlette.types import Scope

    from heddle.extensions.llamacpp.writer import NativeWriter
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served


@decided(Api.LLAMACPP)
@offers(Api.LLAMACPP)
class NativeCompletionRequest(NativeFields):
    """Body of `POST /completion`.

    `prompt` is a text, a list of token ids and texts, an object with `prompt_string`, or a list of
    such prompts. A list of texts has several prompts.
    """

    prompt: Prompts


def routes(dispatcher: Dispatcher) -> APIRouter:
    """The routes of one application."""
    router = APIRouter()

    async def completion(request: Request) -> Response:
        """Continue a prompt, or each prompt of a list."""
        return await dispatcher.answer(request, NativeCompletionRequest, from_native)

    for path in ("/completion", "/completions"):
        router.post(path, openapi_extra=takes(NativeCompletionRequest), operation_id="post" + path)(
            completion
        )
    return router


def from_native(
    body: NativeCompletionRequest, served: Served, _scope: Scope
) -> tuple[GenerationRequest, NativeWriter]:
    """Translate a body into its request and the writer of its answer.

    Raises:
        InvalidRequestError: a value cannot be served, or a prompt is too long for the context.
    """
    params, n, engine = native_params(body, served), choices_of(body), served.engine
    given = prompts_in(body.prompt)
    served.check_choices(len(given), n)
    prompts = [
        prompt.laid(served)
        if isinstance(prompt, Pictured)
        else tokens_of(prompt, engine.model, "prompt")
        for prompt in given
    ]
    for prompt in prompts:
        engine.check_length(len(tokens_in(prompt)), output=params.max_tokens != 0)
    return native_answer(body, served, params, prompts)
