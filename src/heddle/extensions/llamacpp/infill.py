"""llama.cpp's `/infill`, for editors: generates the text between a prefix and a suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from heddle.errors import UnsupportedParameterError
from heddle.extensions.llamacpp.fields import NativeFields
from heddle.extensions.llamacpp.requests import choices_of, native_answer, native_params
from heddle.parameters import Api
from heddle.server.generate.parameters import offers
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import FIRST_FAULT
from heddle.server.http.record import record_of
from heddle.server.http.schema import MAX_ITEMS, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.extensions.llamacpp.writer import NativeWriter
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served
    from heddle.text.tokenizer.tokenizer import Tokenizer


class ExtraFile(Schema):
    """A file or a part of a file, as context. `time` is the time when the editor read the file."""

    text: str
    filename: str | None = None
    time: Any = None


@decided(Api.LLAMACPP)
@offers(Api.LLAMACPP)
class InfillRequest(NativeFields):
    """Body of `POST /infill`. The generated text continues `prompt`."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None
    prompt: str | None = None


def routes(dispatcher: Dispatcher) -> APIRouter:
    """The routes of one application."""
    router = APIRouter()

    dispatcher.add_route(
        router,
        "/infill",
        InfillRequest,
        from_infill,
        "Generate the text between a prefix and a suffix.",
    )
    return router


def from_infill(
    body: InfillRequest, served: Served, scope: Scope
) -> tuple[GenerationRequest, NativeWriter]:
    """Translate a body into its request and the writer of its answer.

    Raises:
        InvalidRequestError: a value cannot be served, prefix and suffix are too long for the
            context, or the model has no FIM tokens.
    """
    params, n, engine = native_params(body, served), choices_of(body), served.engine
    tokenizer = engine.model.tokenizer
    try:
        prompt = tokenizer.encode_fill_in(body.input_prefix, body.input_suffix)
    except UnsupportedParameterError as error:
        raise UnsupportedParameterError(
            f"{engine.model.info.id} has no fill-in-the-middle tokens, which /infill needs. Serve a"
            " model that has them, such as qwen2.5-coder-1.5b",
            param="input_suffix",
        ) from error
    prompt += tokenizer.encode(
        body.prompt or "", add_special=False, parse_special=False, continues=True
    )
    engine.check_length(len(prompt), output=params.max_tokens != 0)
    room = engine.context - len(prompt) - (params.max_tokens or 0)
    extra, left_out = _extra_files(body.input_extra or (), tokenizer, room)
    served.check_choices(1, n)
    if left_out:
        record_of(scope).ignored.append(f"input_extra (first {left_out})")
    prompts = [tokenizer.put_before(prompt, extra)]
    return native_answer(body, served, params, prompts, truncated=left_out > 0)


def _extra_files(
    files: Sequence[ExtraFile], tokenizer: Tokenizer, room: int
) -> tuple[list[int], int]:
    """Token ids of the last files that fit `room` tokens, and the number of files left out.

    Editors send the oldest file first, and more files than a small context holds.
    """
    if not files:
        return [], 0
    named = [(file.filename or f"snippet{place}", file.text) for place, file in enumerate(files, 1)]
    head, *texts, tail = tokenizer.encode_files(named)
    room -= len(head) + len(tail)
    first = len(texts)
    while first > 0 and len(texts[first - 1]) <= room:
        first -= 1
        room -= len(texts[first])
    if first == len(texts):
        return [], first
    return [*head, *(id for text in texts[first:] for id in text), *tail], first
