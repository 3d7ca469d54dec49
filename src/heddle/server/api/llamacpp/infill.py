"""llama.cpp's `/infill`, for editors: generates the text between a prefix and a suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.parameters import Api
from heddle.server.generate.constraints import generation_grammar
from heddle.server.generate.fields import MAX_CHOICES, GenerationFields
from heddle.server.generate.parameters import agreed, offers, sampling_params
from heddle.server.generate.request import GenerationRequest
from heddle.server.generate.tools import NO_TOOLS, close_schemas
from heddle.server.generate.usage import timings
from heddle.server.generate.writer import AnswerWriter
from heddle.server.http.encoding import encode, event
from heddle.server.http.error_shape import error_body
from heddle.server.http.fields import FIRST_FAULT, only
from heddle.server.http.hints import ignore
from heddle.server.http.schema import MAX_ITEMS, Schema, takes
from heddle.text.parsing.parts import Text
from heddle.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.errors import HeddleError
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Served
    from heddle.server.generate.usage import Json
    from heddle.text.parsing.parts import Part
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.types import Delta, Output, TokenLogprob, Usage


class ExtraFile(Schema):
    """A file or a part of a file, as context. `time` is the time when the editor read the file."""

    text: str
    filename: str | None = None
    time: Any = None


@offers(Api.INFILL)
class InfillRequest(GenerationFields):
    """Body of `POST /infill`. The generated text continues `prompt`."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None
    prompt: str | None = None
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    response_fields: Annotated[list[str], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None

    lora: Annotated[Any, only([])] = None
    stream_options: Annotated[Any, only({})] = None


def routes(dispatcher: Dispatcher) -> APIRouter:
    """The routes of one application."""
    router = APIRouter()

    @router.post("/infill", openapi_extra=takes(InfillRequest))
    async def infill(request: Request) -> Response:
        """Generate the text between a prefix and a suffix."""
        return await dispatcher.answer(request, InfillRequest, from_infill)

    return router


def from_infill(
    body: InfillRequest, served: Served, scope: Scope
) -> tuple[GenerationRequest, InfillWriter]:
    """Translate a body into its request and the writer of its answer.

    Raises:
        InvalidRequestError: a value cannot be served, prefix and suffix are too long for the
            context, or the model has no FIM tokens.
    """
    model = served.name
    params = sampling_params(body, served, grammar=generation_grammar(body))
    params, _ = close_schemas(params, NO_TOOLS, body.open_schemas, served)
    tokenizer = served.engine.model.tokenizer
    prompt = tokenizer.encode_fill_in(body.input_prefix, body.input_suffix)
    prompt += tokenizer.encode(
        body.prompt or "", add_special=False, parse_special=False, continues=True
    )
    served.engine.check_length(len(prompt), output=params.max_tokens != 0)
    room = served.engine.context - len(prompt) - (params.max_tokens or 0)
    extra, left_out = _extra_files(body.input_extra or (), tokenizer, room)
    n = _choices_of(body)
    served.check_choices(1, n)
    if left_out:
        ignore(scope, f"input_extra (first {left_out})")
    prompts = [tokenizer.put_before(prompt, extra)]
    request = GenerationRequest(model, prompts, params, n, bool(body.stream))
    return request, InfillWriter(model, body.response_fields, truncated=left_out > 0)


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


def _choices_of(body: InfillRequest) -> int:
    """The number of choices, under either name.

    Raises:
        InvalidRequestError: the two fields differ.
    """
    return agreed(body, "n", "n_cmpl") or 1


class InfillWriter(AnswerWriter):
    """Writes one choice as an object with llama.cpp's fields, several choices as a list.

    A stream has the text in pieces. Its last event has the other fields.
    """

    prefix = "infill-"

    def __init__(self, model: str, fields: Sequence[str] | None, *, truncated: bool) -> None:
        """
        Args:
            model: name of the model in the answer.
            fields: names of the fields to write; None or empty: all fields. See `_selected`.
            truncated: whether the prompt lacks some of the body's files.
        """
        super().__init__(model)
        self._fields = fields
        self._truncated = truncated

    def json(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        choices = [
            self._last(index, output.text, _stop(output.finish, output.stop), output.usage)
            for index, output in enumerate(outputs)
        ]
        return [encode(choices if len(choices) > 1 else choices[0])]

    def opening(self, index: int) -> bytes:
        return b""

    def part(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        assert isinstance(part, Text), "the reading is PLAIN"
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
        choice = {
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
        return _selected(choice, self._fields) if self._fields else choice


def _selected(choice: Json, fields: Sequence[str]) -> Json:
    """The fields of `choice` that `response_fields` names, without unknown names.

    A name such as `timings/prompt_n` selects a field inside of an object.
    """
    flat = choice | {f"timings/{name}": value for name, value in choice["timings"].items()}
    return {name: flat[name] for name in fields if name in flat}


def _stop(finish: FinishReason, word: str | None) -> Json:
    """The reason of the end, in llama.cpp's terms."""
    kind = "limit" if finish is FinishReason.LENGTH else "eos"
    return {"stop_type": kind if word is None else "word", "stopping_word": word or ""}
