"""llama.cpp's `/completion` and `/completions`: continues prompts of texts and token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter, Request
from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.engine.request import check_tokens
from heddle.parameters import Api
from heddle.server.api.llamacpp.fields import NativeFields
from heddle.server.api.llamacpp.requests import choices_of, native_answer, native_params
from heddle.server.generate.parameters import offers
from heddle.server.http.fields import FIRST_FAULT, SHAPE, only
from heddle.server.http.schema import MAX_ITEMS, Schema, takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.engine.loading import LoadedModel
    from heddle.server.api.llamacpp.writer import NativeWriter
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served

    OnePrompt = str | list[int | str]


class PromptObject(Schema):
    """A prompt as an object."""

    prompt_string: str
    multimodal_data: Annotated[Any, only([])] = None


def _shape(value: object) -> str:
    """The tag of a prompt: one of the tags of `_Prompts`."""
    if not isinstance(value, list):
        return f"<{type(value).__name__}>"
    kinds = set(map(type, value))
    if int in kinds and not kinds & {list, dict}:
        return "<list of parts>"
    return "<list of prompts>" if kinds else "<list>"


def _shaped() -> Discriminator:
    words = "a text, an object with prompt_string, a list of token ids and texts, or a list of them"
    return Discriminator(
        _shape, custom_error_type=SHAPE, custom_error_message=f"Input should be {words}"
    )


def _checked(parts: list[Any]) -> list[Any]:
    if not set(map(type, parts)) <= {int, str}:
        raise PydanticCustomError(SHAPE, "Input should be a list of token ids and texts")
    return parts


_Parts = Annotated[list[Any], AfterValidator(_checked)]
"""Token ids and texts. A union of the two would take a second for a million token ids."""
_One = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[PromptObject, Tag("<dict>")]
    | Annotated[_Parts, Tag("<list of parts>")],
    _shaped(),
]
_Prompts = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[PromptObject, Tag("<dict>")]
    | Annotated[_Parts, Tag("<list of parts>")]
    | Annotated[list[_One], Field(max_length=MAX_ITEMS), FIRST_FAULT, Tag("<list of prompts>")],
    _shaped(),
]


@offers(Api.LLAMACPP)
class NativeCompletionRequest(NativeFields):
    """Body of `POST /completion`.

    `prompt` is a text, a list of token ids and texts, an object with `prompt_string`, or a list of
    such prompts. A list of texts has several prompts.
    """

    prompt: _Prompts


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
    given = _prompts(body.prompt)
    served.check_choices(len(given), n)
    prompts = [_tokens(prompt, engine.model) for prompt in given]
    for prompt in prompts:
        engine.check_length(len(prompt), output=params.max_tokens != 0)
    return native_answer(body, served, params, prompts)


def _prompts(prompt: _Prompts) -> list[OnePrompt]:
    """The prompts in the field `prompt`."""
    several = isinstance(prompt, list) and _shape(prompt) == "<list of prompts>"
    prompts = cast("Sequence[OnePrompt | PromptObject]", prompt if several else [prompt])
    return [one.prompt_string if isinstance(one, PromptObject) else one for one in prompts]


def _tokens(prompt: OnePrompt, model: LoadedModel) -> list[int]:
    """The token ids of a prompt. Only a text at its beginning gets the tokens that begin a text.

    Raises:
        InvalidRequestError: a token id is not in the vocabulary.
    """
    encode = model.tokenizer.encode
    if isinstance(prompt, str):
        return encode(prompt)
    ids: list[int] = []
    for place, part in enumerate(prompt):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += encode(part, add_special=place == 0)
    return check_tokens(model, ids, "prompt")
