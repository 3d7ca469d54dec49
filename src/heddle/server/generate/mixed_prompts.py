"""Prompts as in llama.cpp's API: texts, token ids, lists of both, and objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from heddle.engine.requests.request import check_tokens
from heddle.errors import InvalidRequestError, UnsupportedParameterError
from heddle.parameters import Api
from heddle.pictures import Illustrated
from heddle.sent_pictures import SentPicture, picture_reader
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.fields import FIRST_FAULT, SHAPE
from heddle.server.http.hints import SLOW
from heddle.server.http.schema import MAX_ITEMS, Schema
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.loading.loaded_model import LoadedModel
    from heddle.pictures import Laid
    from heddle.server.generate.service import Served


MARK = "<__media__>"
"""llama.cpp's mark of a picture in a text."""


class TextPart(Schema):
    """A text among the parts of `content`."""

    type: Literal["text"]
    text: str


@decided(Api.LLAMACPP, "prompt")
class PromptObject(Schema):
    """A prompt as an object, with its text in one of the two fields.

    `prompt_string` has a mark for each element of `multimodal_data`, a picture's file in base64.
    """

    prompt_string: str | None = None
    multimodal_data: (
        Annotated[list[Annotated[str, SLOW]], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None
    ) = None
    content: Annotated[list[TextPart], Field(max_length=MAX_ITEMS), FIRST_FAULT] | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if (self.prompt_string is None) == (self.content is None):
            raise PydanticCustomError(SHAPE, "Input should have one of prompt_string and content")
        if self.multimodal_data and self.prompt_string is None:
            raise PydanticCustomError(SHAPE, "Input should have prompt_string with multimodal_data")
        return self

    @property
    def text(self) -> str:
        """The whole text."""
        if self.content is None:
            return self.prompt_string or ""
        return "".join(part.text for part in self.content)

    @property
    def prompt(self) -> str | Pictured:
        """The text, with its pictures if there are some."""
        sent = [
            SentPicture(data, f"prompt.multimodal_data[{place}]", is_base64=True)
            for place, data in enumerate(self.multimodal_data or ())
        ]
        return Pictured(self.text, sent) if sent else self.text


@dataclass(frozen=True, slots=True)
class Pictured:
    """A text with pictures, each with the mark of llama.cpp in its place."""

    text: str
    sent: Sequence[SentPicture]

    def laid(self, served: Served) -> Laid:
        """The prompt as the model of a request sees it. It reads the pictures.

        Raises:
            InvalidRequestError: the text has not one mark for each picture, or has a mark of the
                model's eyes; or a picture cannot be read.
            BlindModelError: the model has no eyes.
        """
        model = served.engine.model
        mark, marks = model.sight(self.sent[0].param).mark, self.text.count(MARK)
        if marks != len(self.sent) or (mark != MARK and mark in self.text):
            raise InvalidRequestError(
                f"prompt_string must have {MARK} once for each picture and {mark!r} nowhere, got"
                f" {marks} for {counted(len(self.sent), 'picture')}",
                param="prompt.prompt_string",
            )
        pictures = picture_reader().read(self.sent, served.config)
        return model.lay(Illustrated(self.text.replace(MARK, mark), tuple(pictures)))


OnePrompt: TypeAlias = str | list[int | str] | Pictured


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
    return [one.prompt if isinstance(one, PromptObject) else one for one in prompts]


def tokens_of(prompt: OnePrompt, model: LoadedModel, param: str) -> list[int]:
    """The token ids of a prompt in the field `param`.

    Only a text at the prompt's beginning gets the tokens that begin a text.

    Raises:
        InvalidRequestError: a token id is not in the vocabulary.
        UnsupportedParameterError: it has pictures.
    """
    if isinstance(prompt, Pictured):
        raise UnsupportedParameterError(
            f"{param} has pictures, which this route does not read; send text",
            param=f"{param}.multimodal_data",
        )
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
