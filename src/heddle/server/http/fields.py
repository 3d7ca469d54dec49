"""Field types of the request schemas, with their error messages.

The schemas also declare unsupported fields, with the values that ask for nothing (`store: false`,
`tools: []`). Any other value is refused by name. The shape of a value, such as a list of strings,
selects a member of a union type, so that an error names the invalid element.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Callable

UNSUPPORTED = "heddle_unsupported"
"""Error type of a value that the vendor's API allows and this server does not support."""
SHAPE = "heddle_shape"
"""Error type of a value whose shape does not fit any member of the field's union."""
TEXT = "<text>"
"""Tag of a text that a union tries before other shapes, without a call of Python, because most
values are texts. A value of no shape gets the error of the others (`errors.from_validation`)."""


def is_on(switch: str) -> bool:
    """Whether a switch in a query is on. Clients write 1, true and more; any text but these is on.

    A wrong text cannot make an answer wrong, so it is no reason to refuse a request.
    """
    return switch.lower() not in {"", "0", "false", "no", "off"}


def only(*neutral: object, instead: str = "", dropped: str = "") -> PlainValidator:
    """Accept null and the `neutral` values, which ask for nothing; refuse others as unsupported.

    Args:
        neutral: the values to accept.
        instead: advice for the error message, if the way out is not to leave the field out.
        dropped: the field's full name, if a lenient server ignores it; empty: no server does.
    """
    why = f" ({instead})" if instead else ""

    def check(value: object, info: ValidationInfo) -> object:
        # Types are compared too: in Python False == 0 and True == 1.
        if value is None or any(type(value) is type(ok) and value == ok for ok in neutral):
            return value
        if dropped and info.context is not None and info.context.lenient:
            info.context.ignored.append(dropped)
            return None
        raise PydanticCustomError(UNSUPPORTED, "is not supported by this server" + why)

    schema = WithJsonSchema({"enum": [None, *neutral]})
    return PlainValidator(check, json_schema_input_type=Annotated[Any, schema])


def unserved(kinds: str, why: str) -> BeforeValidator:
    """Refuse texts that match the pattern `kinds`. `why` follows the name of the field."""
    pattern = re.compile(kinds)

    def check(value: object) -> object:
        if isinstance(value, str) and pattern.fullmatch(value):
            raise PydanticCustomError(UNSUPPORTED, why)
        return value

    return BeforeValidator(check)


def shape(value: object) -> str:
    """The tag of a value: `<str>`, `<int>`, `<dict>`, or `<list of str>` by the first element."""
    if isinstance(value, list) and value:
        return f"<list of {type(value[0]).__name__}>"
    return f"<{type(value).__name__}>"


def shaped(words: str, shape_of: Callable[[object], str] = shape) -> Discriminator:
    """Select a union's member by its shape. `words` lists the shapes, for the error."""
    return Discriminator(
        shape_of, custom_error_type=SHAPE, custom_error_message=f"Input should be {words}"
    )


FIRST_FAULT = Field(fail_fast=True)
"""Ends the validation of a list at the first invalid element. A body of 8 MB can have three million
invalid elements, and each error takes 1.6 kB."""

TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], FIRST_FAULT]
Strings = Annotated[list[str], FIRST_FAULT]


def string_or_strings(most: int) -> Any:
    """The type of a field that is one string or a list of at most `most` strings."""
    return Annotated[
        Annotated[str, Tag("<str>")]
        | Annotated[Strings, Field(max_length=most), Tag("<list of str>")]
        | Annotated[Strings, Tag("<list>")],
        shaped("a string or a list of strings"),
    ]


def _bias(value: object) -> float:
    """A bias, or minus infinity for false: the sampler never draws the token."""
    if value is False:
        return -math.inf
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise PydanticCustomError(SHAPE, "Input should be a number or false")


def _token(value: object) -> object:
    if type(value) not in (int, str):
        raise PydanticCustomError(SHAPE, "Input should be a token id or a text")
    return value


_Bias = Annotated[float, PlainValidator(_bias, json_schema_input_type=float | Literal[False])]
_Token = Annotated[int | str, PlainValidator(_token, json_schema_input_type=int | str)]


def biases(most: int) -> Any:
    """The type of a logit bias: an object, or a list of pairs, with at most `most` entries.

    A token is an id or a text. Keys of an object are strings, also those that hold ids.
    """
    pair = Annotated[tuple[_Token, _Bias], Field(strict=False)]  # JSON has lists, not tuples
    pairs = list[pair]
    return Annotated[
        Annotated[dict[str, _Bias], Field(max_length=most), Tag("<dict>")]
        | Annotated[pairs, Field(max_length=most), FIRST_FAULT, Tag("<list of list>")]
        | Annotated[pairs, Tag("<list>")],
        shaped("an object of biases by token, or a list of pairs of token and bias"),
    ]


Prompt = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[TokenIds, Tag("<list of int>")]
    | Annotated[Strings, Tag("<list of str>")]
    | Annotated[list[Annotated[TokenIds, Field(min_length=1)]], FIRST_FAULT, Tag("<list of list>")],
    shaped("a string, a list of strings, a list of token ids or a list of lists of token ids"),
]


def processors(most: int) -> Any:
    """Options of at most `most` logits processors by name. vLLM's clients send an empty list."""
    by_name = Annotated[dict[str, dict[str, Any]], Field(max_length=most)]
    return Annotated[by_name, BeforeValidator(lambda given: {} if given == [] else given)]


def speculation(most: int) -> Any:
    """How tokens are guessed, with at most `most` guesses a step. `SamplingParams` checks it."""
    drafter = {"type": "string", "description": "auto, off, or the name of a drafter"}
    length = {"type": "integer", "minimum": 1, "maximum": most}
    fields = {"drafter": drafter, "length": {"anyOf": [length, {"type": "null"}]}}
    described = {"type": "object", "properties": fields, "additionalProperties": False}
    return Annotated[Any, WithJsonSchema({"anyOf": [drafter, described]})]
