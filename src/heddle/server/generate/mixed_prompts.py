"""Prompts as in llama.cpp's API: texts, token ids, lists of both, and objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from heddle.engine.requests.request import check_tokens
from heddle.parameters import Api
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import FIRST_FAULT, SHAPE
from heddle.server.http.schema import MAX_ITEMS, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.loading.loaded_model import LoadedModel

    OnePrompt = str | list[int | str]


class TextPart(Schema):
    """A text among the parts of `content`."""

    type: Literal["text"]
    text: str


@decided(Api.LLAMACPP, "prompt")
class PromptObject(Schema):
    """A prompt as an object, with its text in one of the two fields."""

    prompt_string: str | None = None
    content: Annotated[list[TextPart], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if (self.prompt_string is None) == (self.content is None):
            raise PydanticCustomError(SHAPE, "Input should have one of prompt_string and content")
        return self

    @property
    def text(self) -> str:
        """The whole text."""
        if self.content is None:
            return self.prompt_string or ""
        return "".join(part.text for part in self.content)


def _shape(value: object) -> str:
    """The tag of a prompt: one of the tags of `Prompts`."""
    if not isinstance(value, list):
        return f"<{type(value).__name__}>"
    kinds = set(map(type, value))
    if int in kinds and not kinds & {list, dict}:
        return "<list of parts>"
    return "<list of prompts>" if kinds else "<list>"


def _shaped() -> Discriminator:
    words = (
        "a text, an object with prompt_string or content, a list of token ids and texts, or a list"
        " of them"
    )
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
Prompts = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[PromptObject, Tag("<dict>")]
    | Annotated[_Parts, Tag("<list of parts>")]
    | Annotated[list[_One], Field(max_length=MAX_ITEMS), FIRST_FAULT, Tag("<list of prompts>")],
    _shaped(),
]


def prompts_in(prompt: Prompts) -> list[OnePrompt]:
    """The prompts in a field that has one prompt or several."""
    several = isinstance(prompt, list) and _shape(prompt) == "<list of prompts>"
    prompts = cast("Sequence[OnePrompt | PromptObject]", prompt if several else [prompt])
    return [one.text if isinstance(one, PromptObject) else one for one in prompts]


def tokens_of(prompt: OnePrompt, model: LoadedModel, param: str) -> list[int]:
    """The token ids of a prompt in the field `param`.

    Only a text at the prompt's beginning gets the tokens that begin a text.

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
    return check_tokens(model, ids, param)
