r"""Tells regular expressions that cut any text in linear time from all others.

Oniguruma backtracks: `(?:a|a)*[^a ]` takes exponential time, and after ten million attempts the
library panics. A pattern is linear if each of its alternatives is a sequence of characters, classes
and groups of words in which nothing that follows an unbounded repetition can fail. Then a
repetition that has read a long run is never given up, and the next search begins after it.
Alternatives for spaces may follow: at the same place where `\s*[\r\n]+` gives up a run of spaces,
`\s+` takes the run.
"""

from __future__ import annotations

import re
from math import prod

_LONGEST = 4096
_MOST_TRIED = 256
"""Most characters that all alternatives together try at a place before they match or fail, but for
those of a run that a repetition takes. Llama 3's tries 44."""

_SPACES = re.compile(
    r"(?:\|\\s\+\+\$)?(?:\|\\s\*\[\\r\\n\]\+?)?(?:\|\\s\+\(\?!\\S\)\|\\s\+?|\|\\s\+)\Z"
)
_CLASS = r"\[\^?(?:\\.|[^\[\]\\]|\[\^?(?:\\.|[^\[\]\\])+\])+\]"  # may hold classes
_WORDS = r"\(\?i?:(?P<words>(?:\[[A-Za-z]+\]|[A-Za-z' ])+(?:\|(?:\[[A-Za-z]+\]|[A-Za-z' ])+)*)\)"
_ITEM = re.compile(
    rf"(?:{_CLASS}|{_WORDS}|\\[pP]\{{\^?\w+\}}|\\[sSdDwWnrt]|\\\W|[^\\\[\](){{}}|?*+.^$])"
    r"(?P<repeat>(?P<sign>[?*+])\+?|\{(?P<least>\d)(?:,(?P<most>\d)?)?\})?",
    re.DOTALL,
)
"""A character, a class or a group of words, and how often it may occur."""


def is_linear(pattern: str) -> bool:
    """Whether `pattern` takes linear time to find all matches in any text. False if unsure."""
    if len(pattern) > _LONGEST:
        return False
    return _are_linear(_SPACES.sub("", f"|{pattern}"))


def _are_linear(alternatives: str) -> bool:
    """Whether all alternatives are linear. A bar comes before each."""
    at, tried = 0, 0
    while at < len(alternatives):
        if alternatives[at] != "|":
            return False
        at, bounds = _items(alternatives, at + 1)
        first = next((i for i, (_, most) in enumerate(bounds) if most is None), len(bounds))
        if any(least for least, _ in bounds[first + 1 :]):
            return False  # the repetition would give up what it has read
        known = [(least, most) for least, most in bounds[:first] if most is not None]
        ways = prod(most - least + 1 for least, most in known)
        tried += ways * (1 + sum(most for _, most in known))
    return tried <= _MOST_TRIED


def _items(text: str, at: int) -> tuple[int, list[tuple[int, int | None]]]:
    """The ends of the items from `at` on, and how often each may occur; None: without a bound."""
    bounds = []
    while match := _ITEM.match(text, at):
        bounds.append(_bounds(match))
        at = match.end()
    return at, bounds


def _bounds(item: re.Match[str]) -> tuple[int, int | None]:
    if item["words"] is not None:
        return _bounds_of_words(item["words"].split("|"), item["repeat"])
    if item["repeat"] is None:
        return 1, 1
    if item["sign"] is not None:
        return {"?": (0, 1), "*": (0, None), "+": (1, None)}[item["sign"]]
    least, most = int(item["least"]), item["most"]
    if most is not None:
        return least, int(most)
    return least, None if "," in item["repeat"] else least


def _bounds_of_words(words: list[str], repeat: str | None) -> tuple[int, int | None]:
    """Bounds that stand for at least as many ways and characters as the words have."""
    if repeat not in (None, "?"):
        return 1, _MOST_TRIED  # too many: the words of a repetition may be one word in several ways
    return int(repeat is None), max(len(words), *map(len, words))
