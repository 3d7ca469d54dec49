"""Hints: fields that this server ignores and that cannot make an answer wrong.

They ask for speed, price, effort, storage or bookkeeping. Agents and editors send them to every
server. The server accepts a hint and names it in the answer's `x-heddle-ignored` header. A field
that constrains the answer is never a hint: the server supports it or refuses it by name
(`lenient.py`). The table of vendors' fields (`generate/vendor_fields/`) says which they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import AfterValidator, ValidationInfo

HEADER = "x-heddle-ignored"


@dataclass(frozen=True, slots=True)
class Notes:
    """Findings of the validation of a body; the context of pydantic's validators.

    Attributes:
        ignored: names of the fields without effect.
        lenient: whether refused fields have no effect, unless an answer without them is wrong.
        slow: names of the fields whose values take long to read, such as pictures.
    """

    ignored: list[str]
    lenient: bool = False
    slow: list[str] = field(default_factory=list)


def hint(*neutral: object, path: str = "") -> AfterValidator:
    """A validator that notes the field as ignored, unless its value is null or in `neutral`.

    `path` is the full name of a field inside of an object.
    """

    def note(value: object, info: ValidationInfo) -> object:
        # Types are compared too: in Python False == 0 and True == 1.
        asks = value is not None and not any(
            type(value) is type(ok) and value == ok for ok in neutral
        )
        if asks and info.context is not None:
            info.context.ignored.append(path or info.field_name)
        return value

    return AfterValidator(note)


def _note_slow(value: str, info: ValidationInfo) -> str:
    if info.context is not None:
        info.context.slow.append(info.field_name)
    return value


SLOW = AfterValidator(_note_slow)
"""A validator that notes the field as slow to read, so that a thread translates the body."""
