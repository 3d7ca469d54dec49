"""Parameters of requests that name adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Tag

from heddle.checks import check, number
from heddle.parameters import Api, ExtensionParams, parameter, with_documentation
from heddle.server.http.fields import FIRST_FAULT, shaped

MOST = 8
"""Adapters of one request."""


class LoraField(BaseModel):
    """An adapter by its name, or as in llama.cpp by its number, and the factor on its changes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = None
    id: int | None = None
    scale: float = 1.0


_Named = Annotated[LoraField, AfterValidator(LoraField.model_dump)]


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """An adapter that a request names, by its name or number, and the factor on its changes."""

    name: str | int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Adapters:
    """At most `most` adapters: a name, or a list of names and of objects with a scale."""

    most: int = MOST

    @property
    def body_type(self) -> Any:
        """See :class:`heddle.parameters.BodyKind`."""
        one = Annotated[
            Annotated[str, Tag("<str>")] | Annotated[_Named, Tag("<dict>")],
            shaped("a name or an object with name or id, and scale"),
        ]
        many = Annotated[list[one], FIRST_FAULT, Field(max_length=self.most)]
        return Annotated[
            Annotated[str, Tag("<str>")]
            | Annotated[many, Tag("<list of str>")]
            | Annotated[many, Tag("<list of dict>")]
            | Annotated[list[one], FIRST_FAULT, Field(max_length=0), Tag("<list>")],
            shaped("a name, or a list of names and objects with name or id, and scale"),
        ]

    @property
    def words(self) -> str:
        """See :class:`heddle.parameters.ValueKind`."""
        return (
            f'a name, or at most {self.most} names or `{{"name": ..., "scale": ...}}`, with `id`'
            " in place of `name` as in llama.cpp"
        )

    def take(self, value: Any, name: str) -> object:
        """See :class:`heddle.parameters.ValueKind`."""
        if value is None:
            return None
        items = [value] if isinstance(value, (str, dict, AdapterChoice)) else value
        check(isinstance(items, (tuple, list)), name, value, self.words)
        check(len(items) <= self.most, name, value, self.words)
        choices = tuple(self._choice(item, name) for item in items)
        once = len({choice.name for choice in choices}) == len(choices)
        check(once, name, [choice.name for choice in choices], "a list with each adapter once")
        return choices

    def _choice(self, item: Any, name: str) -> AdapterChoice:
        if isinstance(item, dict):
            known = item.keys() <= {"name", "id", "scale"}
            named = [one for one in (item.get("name"), item.get("id")) if one is not None]
            check(known and len(named) == 1, name, item, self.words)
            item = AdapterChoice(named[0], item.get("scale", 1.0))
        elif isinstance(item, str):
            item = AdapterChoice(item)
        check(isinstance(item, AdapterChoice), name, item, self.words)
        of_kind = isinstance(item.name, (str, int)) and not isinstance(item.name, bool)
        check(of_kind and item.name != "", name, item.name, "names or numbers of adapters")
        scale = number(item.scale, f"{name}.scale")
        check(-100 <= scale <= 100, f"{name}.scale", scale, "in [-100, 100]")
        return AdapterChoice(item.name, scale)


@with_documentation
@dataclass(frozen=True, slots=True, kw_only=True)
class LoraParams(ExtensionParams):
    """The adapters of one request."""

    lora: tuple[AdapterChoice, ...] | None = parameter(
        None,
        Adapters(),
        "[Adapters](../guides/adapters.md) that change the model for this request, by their names."
        " A `scale` is a factor on the changes of one of them (default 1). A request may also name"
        " one adapter as its `model`. An empty list: none, also where the server has defaults"
        " (`POST /lora-adapters`).",
        source="llama.cpp",
        apis=Api.ALL,
        aliases={"lora_path": Api.GENERATION | Api.RESPONSES},
        native=False,
    )
