"""Rows of the table of fields that vendors document (`table.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.parameters import Api


class Outcome(Enum):
    """How the server treats a field."""

    SERVED = "served"
    IGNORED = "accepted without effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Row:
    """One field, and what the server does with it.

    Attributes:
        name: the field's name in the body, or in the object `within`.
        outcome: how the server treats the field.
        apis: the APIs whose requests have the field.
        within: path of the object that has the field, such as `tools.function`; empty: the body.
            The elements of a list have the path of the list.
        kind: the type of an ignored field's value.
        neutral: values that ask for what the server does anyway. The server accepts them for a
            refused field, and does not report an ignored field with such a value. Null is neutral.
        doc: why an answer without an ignored field is not wrong, or what a refused field would
            change.
        instead: the replacement of a refused field, for the error.
        constrains: whether an answer could be wrong if the server ignored the field.
            `--lenient` refuses such a field, also where it is unknown.
    """

    name: str
    outcome: Outcome
    apis: Api
    within: str = ""
    kind: Any = Any
    neutral: tuple[object, ...] = ()
    doc: str = ""
    instead: str = ""
    constrains: bool = False

    @property
    def path(self) -> str:
        """The name with the path of the object that has the field."""
        return f"{self.within}.{self.name}" if self.within else self.name


def served(
    apis: Api, names: str, *, within: str = "", constrains: bool = False, doc: str = ""
) -> tuple[Row, ...]:
    """Rows of served fields. `names` has spaces between the names."""
    return tuple(
        Row(name, Outcome.SERVED, apis, within, doc=doc, constrains=constrains)
        for name in names.split()
    )


def ignored(
    apis: Api, name: str, kind: Any, doc: str, *neutral: object, within: str = ""
) -> tuple[Row, ...]:
    """The row of a field that is accepted without effect."""
    return (Row(name, Outcome.IGNORED, apis, within, kind, neutral, doc),)


def refused(
    apis: Api,
    names: str,
    doc: str,
    *neutral: object,
    within: str = "",
    instead: str = "",
    constrains: bool = True,
) -> tuple[Row, ...]:
    """Rows of refused fields. `names` has spaces between the names."""
    return tuple(
        Row(name, Outcome.REFUSED, apis, within, Any, neutral, doc, instead, constrains)
        for name in names.split()
    )
