"""`--lenient`: ignores fields of a body that the server does not know or does not support.

Load generators and old clients send such fields. The answer names them in `x-heddle-ignored`, and
unknown fields in its Warning header, too. The server still refuses invalid values and constraints:
an answer that does not follow the `grammar` of its request would be wrong without a sign.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from heddle.errors import UnsupportedParameterError
from heddle.server.http.hints import Notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from heddle.server.http.record import RequestRecord

S = TypeVar("S", bound=BaseModel)

_MOST_NAMED = 20
_MOST_FAULTS = 1000
_HARMLESS = re.compile(r"[^A-Za-z0-9_.-]")


def parse_leniently(
    raw: bytes, schema: type[S], record: RequestRecord, constraints: Set[str]
) -> tuple[S, Notes]:
    """Parse the body without its unknown fields. Their names go to the record.

    `constraints` are the names of fields of all vendors without which an answer could be wrong.
    Returns the body and the notes about it.

    Raises:
        pydantic.ValidationError: the body has another fault.
        UnsupportedParameterError: an unknown field is a constraint, at any depth of the body.
    """
    unnoted = Notes([], lenient=True)
    names = [
        _checked(name, value, constraints)
        for name, value in _unknown(schema.model_validate_json(raw, extra="allow", context=unnoted))
    ]
    notes = Notes(record.ignored, lenient=True)
    parsed = schema.model_validate_json(raw, extra="ignore", context=notes)
    shown = ["too many to name"]
    if len(names) <= _MOST_FAULTS:
        shown = [*dict.fromkeys(_HARMLESS.sub("?", name[:40]) for name in names)][:_MOST_NAMED]
    record.unknown.extend(shown)
    notes.ignored.extend(shown)
    return parsed, notes


def _unknown(value: object) -> Iterator[tuple[str, object]]:
    """The unknown fields of a body and of the objects in it, with their values."""
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for one in value:
            yield from _unknown(one)
    if isinstance(value, BaseModel):
        for one in vars(value).values():
            yield from _unknown(one)
        yield from (value.model_extra or {}).items()


def _checked(name: str, value: object, constraints: Set[str]) -> str:
    """The name of an unknown field that the server may ignore.

    Raises:
        UnsupportedParameterError: the field is a constraint.
    """
    is_neutral = value is False or value in (None, "", [], {})  # 0 is not: it is a value
    if name in constraints and not is_neutral:
        raise UnsupportedParameterError(
            f"{name} is not supported by this server, and an answer without it could be wrong;"
            " leave it out",
            param=name,
        )
    return name
