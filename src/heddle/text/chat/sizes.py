"""Refuses operators, calls and filters of a chat template whose results would be large.

All checks raise `TemplateError` before the work. They bound sizes from above, so they may refuse an
operation whose result would just fit; such results are far larger than any prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from string import Formatter
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from heddle.text.chat.budget import BUDGET, check_length

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_BITS = 4096
_MOST_NUMBER = 100_000
"""The largest number, such as a width, that a template may pass to a function or a filter."""

_MOST_PIECES = 4 << 20
"""Most pieces that a text may be split into. A piece takes about 60 bytes."""

_LARGE_WIDTH = re.compile(r"\*|\d{5}")
_NUMBERS = re.compile(r"\d+")

_TEXT_METHODS = """
    capitalize casefold center count endswith find format format_map index isalnum isalpha isascii
    isdecimal isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip partition
    removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines
    startswith strip swapcase title upper zfill
"""


class OwnList(list[Any]):
    """A list that a template has made. It may append to it, and take elements from it."""


_METHODS: dict[type, frozenset[str]] = {
    OwnList: frozenset({"append", "copy", "count", "index", "pop"}),
    str: frozenset(_TEXT_METHODS.split()),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    float: frozenset({"is_integer"}),
}
"""Methods that a template may call, by the type of their object."""

_CLOSED_TYPES = (str, bytes, bytearray, dict, list, tuple, set, frozenset, int, float, range, type)
"""Types whose other methods a template may not call."""

_TEXT_FILTERS = frozenset({"center", "format", "indent", "replace"})
"""Filters that turn their subject into a text, and whose results depend on their arguments."""

_READING_FILTERS = _TEXT_FILTERS | frozenset(
    {"dictsort", "groupby", "join", "max", "min", "sort", "string", "sum", "tojson", "unique"}
)
"""Filters that read the elements of their subject, and elements of those."""

_SLOW_FILTERS = frozenset({"title", "truncate", "urlencode", "wordcount"})
_MOST_SLOW = 1 << 20
"""Most characters of a subject of `_SLOW_FILTERS`: `title` takes 0.5 s for them."""


def check_numbers(values: Iterable[Any]) -> None:
    """Refuse large numbers, such as widths, that go to a function or a filter."""
    for value in values:
        if isinstance(value, int) and abs(value) > _MOST_NUMBER:
            raise TemplateError(f"it passes a function a number beyond {_MOST_NUMBER:,}")


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse an operator whose result would be large."""
    if operator == "%" and isinstance(left, str):
        fields = 1 if isinstance(right, tuple) else left.count("%")
        _check_format(left, fields * BUDGET.get().weigh(right))
    if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        check_length(len(left) + len(right))
    if operator == "*":
        for items, times in ((left, right), (right, left)):
            if isinstance(items, Sized) and isinstance(times, int):
                check_length(len(items) * times)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        raised = operator == "**"
        bits = left.bit_length() * abs(right) if raised else left.bit_length() + right.bit_length()
        if bits > _MOST_BITS:
            raise TemplateError(f"it computes a number of more than {_MOST_BITS} bits")


def check_call(function: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse methods that templates do not need, and calls whose results would be large."""
    for one in arguments:
        BUDGET.get().step(64 * len(one) if isinstance(one, (str, list, tuple)) else 0)
    method = getattr(function, "__wrapped__", function)  # the sandbox wraps `str.format`
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if isinstance(owner, _CLOSED_TYPES):
        kind = next((kind for kind in _METHODS if isinstance(owner, kind)), type(owner))
        if name not in _METHODS.get(kind, ()):
            raise TemplateError(f"it calls {kind.__name__}.{name}, which templates may not call")
    if isinstance(owner, str):
        BUDGET.get().step(len(owner))
        _check_text(name, owner, arguments, named)
    elif name == "append":
        BUDGET.get().made([*arguments])
    elif name in ("changed", "count", "index"):  # they compare
        for one in (owner, *arguments):
            BUDGET.get().weigh(one if isinstance(one, (str, list, tuple, dict)) else "")


def check_filter(
    name: str, subject: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    """Refuse a filter whose result would be large. Returns what the filter should get."""
    if name in _READING_FILTERS:
        subject = BUDGET.get().listed(subject)
        size = BUDGET.get().weigh(subject)
        if name in _TEXT_FILTERS and not isinstance(subject, str):
            subject = str(subject)
        if name == "join":
            separator = str(arguments[0] if arguments else named.get("d", ""))
            check_length(size + len(subject) * len(separator))
        start = named.get("start", arguments[1] if len(arguments) > 1 else 0)
        if name == "sum" and not isinstance(start, (int, float)):
            raise TemplateError("it adds other things than numbers")
    if isinstance(subject, str):
        BUDGET.get().step(len(subject))
        if name in _SLOW_FILTERS and len(subject) > _MOST_SLOW:
            raise TemplateError(f"it passes more than {_MOST_SLOW:,} characters to {name}")
        _check_text(name, subject, arguments, named)
    return subject


def _check_text(name: str, text: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse a method or a filter of `text` whose result would be large."""
    given = (*arguments, *named.values())
    if name in ("format", "format_map"):
        fields = text.count("{") + text.count("%")
        _check_format(text, fields * sum(map(BUDGET.get().weigh, given)))
        if any("{" in (spec or "") for *_, spec, _ in _fields(text)):
            raise TemplateError("it formats with a width that is an argument")
    if name == "replace":
        old = arguments[0] if arguments else named.get("old", "")
        new = arguments[1] if len(arguments) > 1 else named.get("new", "")
        check_length(len(text) + text.count(str(old)) * len(str(new)))
    if name == "join":
        for one in arguments[:1]:
            check_length(BUDGET.get().weigh(one) + len(text) * len(one))
    if name in ("split", "rsplit", "splitlines", "list"):
        separator = given[0] if given and isinstance(given[0], str) else None
        shortest = 2 if name in ("split", "rsplit") else 1  # a piece and the space after it
        pieces = text.count(separator) if separator else len(text) // shortest
        if pieces > _MOST_PIECES:
            raise TemplateError(f"it splits a text into {pieces:,} pieces")
    if name == "indent":
        width = next(iter(given), 4)
        size = width if isinstance(width, int) else len(str(width))
        check_length(len(text) + len(text.splitlines()) * size)


def _fields(text: str) -> Iterable[tuple[Any, ...]]:
    try:
        return list(Formatter().parse(text))
    except ValueError:  # not this kind of format: the operation itself says what is wrong
        return ()


def _check_format(text: str, arguments: int) -> None:
    """`arguments` bounds the characters that come from arguments."""
    if _LARGE_WIDTH.search(text):
        raise TemplateError(f"it formats with a width that is too large: {text!r:.60}")
    widths = sum(int(match[0]) for match in _NUMBERS.finditer(text))
    check_length(len(text) + widths + arguments)
