"""Field types of the request schemas: what a field accepts, and how it says what it does not.

A field that this server cannot honour is declared with the values for which ignoring it is the
truth (`store: false`, `tools: []`); any other value is refused by name. A field of several shapes
looks at the value once to pick the shape, so that an error names the element that is wrong.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, PlainValidator, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

UNSUPPORTED = "heddle_unsupported"
"""Error type of a value that OpenAI's API knows and this server does not serve."""
SHAPE = "heddle_shape"
"""Error type of a value that has none of a field's shapes."""


def only(*neutral: object, instead: str = "") -> PlainValidator:
    """Accept null and the values that ask for nothing; refuse the rest as not supported.

    `instead` says what to do, where that is not simply to leave the field out.
    """
    why = f" ({instead})" if instead else ""

    def check(value: object) -> object:
        # Types are compared too: in Python False == 0 and True == 1.
        if value is None or any(type(value) is type(ok) and value == ok for ok in neutral):
            return value
        raise PydanticCustomError(UNSUPPORTED, "is not supported by this server" + why)

    schema = WithJsonSchema({"enum": [None, *neutral]})
    return PlainValidator(check, json_schema_input_type=Annotated[Any, schema])


def shape(value: object) -> str:
    """Tag of a value: `<str>`, `<int>`, `<dict>`, ... or `<list of str>` by the first element."""
    if isinstance(value, list) and value:
        return f"<list of {type(value[0]).__name__}>"
    return f"<{type(value).__name__}>"


def shaped(words: str) -> Discriminator:
    """Pick a union's member by :func:`shape`; say `words` when no member fits."""
    return Discriminator(
        shape, custom_error_type=SHAPE, custom_error_message=f"Input should be {words}"
    )


FIRST_FAULT = Field(fail_fast=True)
"""Of a list, that validation ends at the first wrong element: an error takes 1.6 kB, and a body of
8 MB has room for three million."""

TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], FIRST_FAULT]
Strings = Annotated[list[str], FIRST_FAULT]


def string_or_strings(most: int) -> Any:
    """The type of a field that is one string, or a list of at most so many."""
    return Annotated[
        Annotated[str, Tag("<str>")]
        | Annotated[Strings, Field(max_length=most), Tag("<list of str>")]
        | Annotated[Strings, Tag("<list>")],
        shaped("a string or a list of strings"),
    ]


Prompt = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[TokenIds, Tag("<list of int>")]
    | Annotated[Strings, Tag("<list of str>")]
    | Annotated[list[Annotated[TokenIds, Field(min_length=1)]], FIRST_FAULT, Tag("<list of list>")],
    shaped("a string, a list of strings, a list of token ids or a list of lists of token ids"),
]
