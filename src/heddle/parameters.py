"""Rows of the table of sampling parameters.

The table is `SamplingParams` in `sampling_params.py`: each of its fields is a row, made by
:func:`parameter`. Five things are derived from the rows: checks, request schemas, the translation
of requests, the numbers of the native sampler, and the table of docs/reference/sampling.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from enum import Enum, Flag, auto
from functools import partial
from inspect import cleandoc
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from heddle.checks import check, check_salt, integer, number

T = TypeVar("T")

MAX_TOP_LOGPROBS = 20
"""OpenAI's limit, which its routes and others keep."""
MAX_LOGPROBS = 1024
MAX_INT32 = 2**31 - 1

_KEY = "parameter"
"""Key of the row in the metadata of a dataclass field."""


class Api(Flag):
    """The APIs whose requests have a field."""

    CHAT = auto()
    COMPLETIONS = auto()
    LLAMACPP = auto()
    RESPONSES = auto()
    MESSAGES = auto()
    OLLAMA_CHAT = auto()
    OLLAMA_GENERATE = auto()
    OLLAMA_EMBED = auto()
    OLLAMA_EMBEDDINGS = auto()
    OLLAMA_SHOW = auto()
    OLLAMA_PULL = auto()
    OLLAMA_DELETE = auto()
    COUNT = auto()
    EMBEDDINGS = auto()
    EMBEDDING = auto()
    RERANK = auto()
    SCORE = auto()
    CLASSIFY = auto()
    POOLING = auto()
    COHERE_EMBED = auto()
    TOKENIZE = auto()
    DETOKENIZE = auto()
    APPLY_TEMPLATE = auto()
    GENERATION = CHAT | COMPLETIONS | LLAMACPP
    VECTORS = EMBEDDINGS | RERANK | SCORE | CLASSIFY | POOLING
    """APIs whose answers come from one vector for each text."""
    OLLAMA = OLLAMA_CHAT | OLLAMA_GENERATE
    EXTENDED = GENERATION | RESPONSES | OLLAMA
    """APIs whose requests have more fields than the vendor defines."""
    ALL = EXTENDED | MESSAGES
    NONE = 0


# --- kinds of values -----------------------------------------------------------------------------


class ValueKind(Protocol):
    """The values that a parameter accepts."""

    @property
    def words(self) -> str:
        """The accepted values in words, for the documentation."""
        ...

    def take(self, value: Any, name: str) -> object:
        """Check `value` and return it in the form that `SamplingParams` stores.

        `name` is the parameter's name, for errors.

        Raises:
            InvalidRequestError: the value has another type or is out of range.
        """
        ...


@runtime_checkable
class BodyKind(ValueKind, Protocol):
    """A kind of value of an extension."""

    @property
    def body_type(self) -> Any:
        """The type of a field in bodies, for pydantic. `take` gets what this type makes."""
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers from `low` to `high`, both included.

    Attributes:
        excludes_low: whether the range excludes `low`.
        extra: one more accepted number, outside of the range; None: no such number.
        step: divisor of all accepted numbers, except `extra`; None: no such divisor.
        optional: whether the parameter also accepts None.
        note: meaning of special values.
        range_text: the range in words, if the text made from the numbers is not clear.
        plain: the type whose values need no conversion and no check but that of the range; None:
            all need one, as a float may be no number.
    """

    plain: ClassVar[type | None] = None

    low: float
    high: float = math.inf
    excludes_low: bool = False
    extra: float | None = None
    step: int | None = None
    optional: bool = False
    note: str = ""
    range_text: str = ""

    def __contains__(self, value: float) -> bool:
        within = self.low < value if self.excludes_low else self.low <= value
        inside = within and value <= self.high and (self.step is None or value % self.step == 0)
        return inside or value == self.extra

    @property
    def words(self) -> str:
        """The range in words, for errors and for the documentation."""
        bracket = "(" if self.excludes_low else "["
        interval = f"in {bracket}{self.low}, {self.high}]"
        range_ = self.range_text or (f"at least {self.low}" if self.high >= MAX_INT32 else interval)
        return f"{range_} ({self.note})" if self.note else range_

    def json_schema(self) -> dict[str, Any]:
        """The range as a JSON schema."""
        schema: dict[str, Any] = {"exclusiveMinimum" if self.excludes_low else "minimum": self.low}
        if self.high != math.inf:
            schema["maximum"] = self.high
        if self.step is not None:
            schema["multipleOf"] = self.step
        return schema if self.extra is None else {"anyOf": [schema, {"const": self.extra}]}

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`. Converts numbers of other libraries to Python's types."""
        if value is None and self.optional:
            return None
        taken: float = value
        if type(value) is not self.plain:
            taken = self._number(value, name)
        if taken not in self:
            check(False, name, taken, self.words)
        return taken

    def _number(self, value: object, name: str) -> float:
        return number(value, name)


@dataclass(frozen=True, slots=True)
class Integer(Number):
    """Integers from `low` to `high`, both included."""

    plain: ClassVar[type | None] = int

    def _number(self, value: object, name: str) -> int:
        return integer(value, name)


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false."""

    words: ClassVar[str] = "true or false"

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        check(value in (True, False), name, value, self.words)
        return bool(value)


@dataclass(frozen=True, slots=True)
class Salt:
    """A short string or None."""

    words: ClassVar[str] = "1 to 256 characters"

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        check_salt(value)
        return value


@dataclass(frozen=True, slots=True)
class Strings:
    """At most `most` strings of 1 to `longest` characters.

    Attributes:
        or_one: whether a request may have one string in place of a list.
    """

    most: int
    longest: int
    or_one: bool = False

    @property
    def words(self) -> str:
        """See :class:`ValueKind`."""
        return f"at most {self.most:,} of 1 to {self.longest:,} characters"

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        strings = isinstance(value, (tuple, list)) and all(isinstance(s, str) for s in value)
        check(strings, name, value, "a tuple of strings")
        check(len(value) <= self.most, name, value, f"at most {self.most} strings")
        fits = all(0 < len(string) <= self.longest for string in value)
        check(fits, name, value, f"strings of 1 to {self.longest} characters")
        return tuple(value)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """At most `most` token ids. The engine compares them with the vocabulary."""

    most: int

    @property
    def words(self) -> str:
        """See :class:`ValueKind`."""
        return f"at most {self.most} token ids"

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        check(isinstance(value, (tuple, list)), name, value, "a tuple of token ids")
        check(len(value) <= self.most, name, value, self.words)
        return tuple(integer(id, name) for id in value)


@dataclass(frozen=True, slots=True)
class Biases:
    """A map from token ids to numbers from -`largest` to `largest`, or minus infinity: never."""

    largest: int

    @property
    def words(self) -> str:
        """See :class:`ValueKind`."""
        values = f"values in [-{self.largest}, {self.largest}]"
        return f"token ids to {values}, or minus infinity (never)"

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        taken = {integer(token, name): self.bias(bias, name) for token, bias in value.items()}
        for token in taken:
            check(token >= 0, name, token, "keyed by token ids of at least 0")
        return taken

    def bias(self, value: Any, name: str) -> float:
        """The checked bias of one token.

        Raises:
            InvalidRequestError: it is no number, or is out of range.
        """
        bias = value if value == -math.inf else number(value, name)
        within = -self.largest <= bias <= self.largest or bias == -math.inf
        check(within, name, bias, f"values in [-{self.largest}, {self.largest}]")
        return bias

    def nearest(self, bias: float) -> float:
        """The bias of the range that is nearest to `bias`; minus infinity stays."""
        return bias if bias == -math.inf else max(-self.largest, min(self.largest, bias))


@dataclass(frozen=True, slots=True)
class Members:
    """A list of members of an enumeration, or of their values, each at most once.

    Attributes:
        of: the enumeration.
        aliases: further names of members.
        letters: letters of members. A string of letters may stand for the list.
    """

    of: type[Enum]
    aliases: Mapping[str, Enum]
    letters: Mapping[str, Enum]

    @property
    def words(self) -> str:
        """See :class:`ValueKind`."""
        return ", ".join(f"`{member.value}`" for member in self.of)

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        if isinstance(value, str):
            check(len(value) <= len(self.of), name, len(value), f"at most {len(self.of)} letters")
            value = tuple(self._of_letter(letter, name) for letter in value)
        check(isinstance(value, (tuple, list)), name, value, "a list of names")
        members = tuple(self._member(one, name) for one in value)
        names = [member.value for member in members]
        once = len(set(members)) == len(members)
        check(once, name, names, "a list that names each sampler once")
        return members

    def _of_letter(self, letter: str, name: str) -> Enum:
        member = self.letters.get(letter)
        check(member is not None, name, letter, f"made of the letters {''.join(self.letters)}")
        assert member is not None
        return member

    @property
    def names(self) -> dict[str, Enum]:
        """All names of members."""
        return {str(member.value): member for member in self.of} | dict(self.aliases)

    def _member(self, value: object, name: str) -> Enum:
        member = value if isinstance(value, self.of) else self.names.get(str(value))
        check(member is not None, name, value, f"made of {', '.join(m.value for m in self.of)}")
        assert member is not None
        return member


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an enumeration, or its value."""

    of: type[Enum]

    @property
    def words(self) -> str:
        """See :class:`ValueKind`."""
        return " or ".join(f"`{member.value}`" for member in self.of)

    @property
    def values(self) -> tuple[str, ...]:
        """The values in requests."""
        return tuple(str(member.value) for member in self.of)

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        known = {str(member.value): member for member in self.of}
        member = value if isinstance(value, self.of) else known.get(str(value))
        check(member is not None, name, value, " or ".join(map(repr, known)))
        return member


@dataclass(frozen=True, slots=True)
class Processors:
    """At most `most` logits processors: objects with their options, by name."""

    most: int

    @property
    def words(self) -> str:
        """See :class:`ValueKind`."""
        return f'at most {self.most} as `{{"name": {{options}}}}`'

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        good = isinstance(value, Mapping)
        good = good and all(isinstance(options, Mapping) for options in value.values())
        check(good, name, value, "an object with the options of each processor by name")
        check(len(value) <= self.most, name, len(value), f"at most {self.most} processors")
        return dict(value)


@dataclass(frozen=True, slots=True)
class Speculation:
    """How the tokens of one request are guessed. Guesses never change the output.

    Attributes:
        drafter: "auto": any drafter, where it is expected to be faster; "off": no guesses; else the
            name of the only drafter.
        length: number of guesses in each step; None: as many as are expected to be faster.
    """

    drafter: str = "auto"
    length: int | None = None

    MOST: ClassVar[int] = 31

    @property
    def off(self) -> bool:
        """Whether nothing is guessed."""
        return self.drafter == "off"


@dataclass(frozen=True, slots=True)
class Speculations:
    """A :class:`Speculation`, the name of its drafter, a map with its fields, or None."""

    words: ClassVar[str] = "auto, off, or an object with drafter and length"

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        if value is None or isinstance(value, Speculation):
            return value
        if isinstance(value, str):
            value = {"drafter": value}
        good = isinstance(value, Mapping) and value.keys() <= {"drafter", "length"}
        check(good and isinstance(value.get("drafter", ""), str), name, value, self.words)
        length = value.get("length")
        if length is not None:
            length = integer(length, f"{name}.length")
            in_range = 1 <= length <= Speculation.MOST
            check(in_range, f"{name}.length", length, f"in [1, {Speculation.MOST}]")
        return Speculation(value.get("drafter", "auto"), length)


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of class `of`, or None."""

    of: type[object]

    @property
    def words(self) -> str:
        """See :class:`ValueKind`."""
        return f"a `{self.of.__name__}`"

    def take(self, value: Any, name: str) -> object:
        """See :class:`ValueKind`."""
        is_one = value is None or isinstance(value, self.of)
        check(is_one, name, value, f"a {self.of.__name__}")
        return value


# --- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """A row of the table.

    Attributes:
        name: the parameter's name in `SamplingParams`, in requests and in the native sampler.
        default: value of the parameter if a request does not have it.
        kind: accepted values.
        doc: definition of the parameter, in Markdown.
        source: who defined the parameter.
        apis: APIs that offer the parameter under `name`.
        aliases: further names of the parameter, and the APIs that offer them.
        native: whether the native sampler has a number of this name, which the executor sets.
    """

    name: str
    default: Any
    kind: ValueKind
    doc: str
    source: str
    apis: Api
    aliases: Mapping[str, Api]
    native: bool

    def names(self, api: Api) -> tuple[str, ...]:
        """The parameter's names in requests of `api`; empty if `api` does not offer it."""
        names = {self.name: self.apis, **self.aliases}
        return tuple(name for name, apis in names.items() if api in apis)


def parameter(
    default: T,
    kind: ValueKind,
    doc: str,
    *,
    source: str = "",
    apis: Api = Api.EXTENDED,
    aliases: Mapping[str, Api] | None = None,
    native: bool = True,
) -> T:
    """Make a field of `SamplingParams`, which is a row of the table; see :class:`Parameter`.

    `native` has an effect on numbers only: the executor prepares values of other kinds.
    """
    row = Parameter(
        "", default, kind, doc, source, apis, aliases or {}, native and isinstance(kind, Number)
    )
    if isinstance(default, dict):  # all objects would share a mutable default
        return field(default_factory=partial(copy, default), metadata={_KEY: row})
    return field(default=default, metadata={_KEY: row})


def rows_of(table: type[object]) -> tuple[Parameter, ...]:
    """The rows of a dataclass: its fields that are made by :func:`parameter`."""
    return tuple(
        replace(one.metadata[_KEY], name=one.name)
        for one in fields(table)  # type: ignore[arg-type]  # any dataclass
        if _KEY in one.metadata
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionParams:
    """Parameters of requests that one extension brings. Each field is made by :func:`parameter`."""

    def __post_init__(self) -> None:
        for row in rows_of(type(self)):
            taken = row.kind.take(getattr(self, row.name), row.name)
            object.__setattr__(self, row.name, taken)  # the class is frozen


def with_documentation(table: type[T]) -> type[T]:
    """Add the rows of a dataclass to its docstring."""
    lines = [f"    {row.name} ({row.kind.words}): {row.doc}" for row in rows_of(table)]
    table.__doc__ = "\n".join([cleandoc(table.__doc__ or ""), "", "Attributes:", *lines])
    return table
