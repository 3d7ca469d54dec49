"""Parameters of requests that name engram tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Tag

from heddle.checks import check, number
from heddle.parameters import (
    Api,
    ExtensionParams,
    Member,
    Number,
    Switch,
    parameter,
    with_documentation,
)
from heddle.server.http.fields import FIRST_FAULT, shaped


class EngramForm(Enum):
    """How the probabilities of an engram table become a bias."""

    LIFT = "lift"
    LITERAL = "literal"


class EngramField(BaseModel):
    """A name of an engram table and its weight among the tables of the request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    weight: float = 1.0


_Named = Annotated[EngramField, AfterValidator(EngramField.model_dump)]


@dataclass(frozen=True, slots=True)
class EngramChoice:
    """An engram table that a request names, and its weight among the tables of the request."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Engrams:
    """At most `most` engram tables: a name, or a list of names and of objects with a weight."""

    most: int
    heaviest: float = 1000.0

    @property
    def body_type(self) -> Any:
        """See :class:`heddle.parameters.BodyKind`."""
        one = Annotated[
            Annotated[str, Tag("<str>")] | Annotated[_Named, Tag("<dict>")],
            shaped("a name or an object with name and weight"),
        ]
        many = Annotated[list[one], FIRST_FAULT, Field(max_length=self.most)]
        return Annotated[
            Annotated[str, Tag("<str>")]
            | Annotated[many, Tag("<list of str>")]
            | Annotated[many, Tag("<list of dict>")]
            | Annotated[list[one], FIRST_FAULT, Field(max_length=0), Tag("<list>")],
            shaped("a name, or a list of names and objects with name and weight"),
        ]

    @property
    def words(self) -> str:
        """See :class:`heddle.parameters.ValueKind`."""
        return f'a name, or at most {self.most} names or `{{"name": ..., "weight": ...}}`'

    def take(self, value: Any, name: str) -> object:
        """See :class:`heddle.parameters.ValueKind`."""
        items = [value] if isinstance(value, (str, dict, EngramChoice)) else value
        check(isinstance(items, (tuple, list)), name, value, self.words)
        check(len(items) <= self.most, name, value, self.words)
        choices = tuple(self._choice(item, name) for item in items)
        once = len({choice.name for choice in choices}) == len(choices)
        check(once, name, [choice.name for choice in choices], "a list with each name once")
        return choices

    def _choice(self, item: Any, name: str) -> EngramChoice:
        if isinstance(item, dict):
            check(item.keys() <= {"name", "weight"} and "name" in item, name, item, self.words)
            item = EngramChoice(**item)
        elif isinstance(item, str):
            item = EngramChoice(item)
        check(isinstance(item, EngramChoice), name, item, self.words)
        check(isinstance(item.name, str) and item.name != "", name, item.name, "names of tables")
        weight = number(item.weight, f"{name}.weight")
        within = 0 < weight <= self.heaviest
        check(within, f"{name}.weight", weight, f"in (0, {self.heaviest:g}]")
        return EngramChoice(item.name, weight)


@with_documentation
@dataclass(frozen=True, slots=True, kw_only=True)
class EngramParams(ExtensionParams):
    """The tables that bias the logits of one request, and how."""

    engram: tuple[EngramChoice, ...] = parameter(
        (),
        Engrams(8),
        "[Engram tables](../guides/engrams.md) that bias the logits, by their names. Several tables"
        " are merged: p is the mean of their probabilities by weight (default 1, at most 1,000).",
        source="Heddle",
        apis=Api.ALL,
    )
    engram_alpha: float | None = parameter(
        None,
        Number(0, 100, optional=True),
        "Strength of the bias of engram tables; by default the server's `--engram-alpha`.",
        source="Heddle",
        apis=Api.ALL,
        native=False,
    )
    engram_form: EngramForm = parameter(
        EngramForm.LIFT,
        Member(EngramForm),
        "`lift` adds `engram_alpha` * (ln(p + 1e-10) - ln 1e-10) to the logits of the predicted"
        " tokens. `literal` adds `engram_alpha` * ln(p + 1e-10), which lowers them against all"
        " others.",
        source="Heddle",
        apis=Api.ALL,
    )
    engram_in_reasoning: bool = parameter(
        True,
        Switch(),
        "Whether engram tables also bias the tokens of reasoning.",
        source="Heddle",
        apis=Api.ALL,
    )
