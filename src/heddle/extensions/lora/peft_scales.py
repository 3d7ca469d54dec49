"""Ranks and scales that `adapter_config.json` gives, for each module.

`rank_pattern` and `alpha_pattern` map regular expressions to numbers. PEFT takes the first that
matches the end of a module's name (`peft.utils.other.get_pattern_key`). Python's engine may take
exponential time for a hostile expression, so only simple ones are read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Self

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.lora.pairs import MOST_RANK

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = "adapter_config.json"

_SIMPLE = re.compile(
    r"\^?(?:[\w|-]|\\?\.|\\d\+?|\.[*+]|\[[\w-]+\][*+]?|\((?:\?:)?[\w\\.|-]+\))+\$?", re.ASCII
)
"""Expressions without repeated or nested groups."""
_GROUP = re.compile(r"\(([^)]*)\)")
_LONGEST_PATTERN = 512
_MOST_PATTERNS = 4096
_BITS_OF_REPEAT = 6
_MOST_STEPS = 100_000
"""Most steps that all expressions may take together at one module's name, roughly."""


@dataclass(frozen=True, slots=True)
class _Patterns:
    """The entries of `rank_pattern` or `alpha_pattern`."""

    entries: tuple[tuple[re.Pattern[str], float], ...]

    @classmethod
    def read(cls, config: Mapping[str, object], field: str) -> Self:
        given = config.get(field) or {}
        if not isinstance(given, dict):
            raise _wrong(field, "must be an object", given)
        if len(given) > _MOST_PATTERNS:
            raise ModelFileError(
                f"{CONFIG}: {field} has {len(given):,} entries; the most are {_MOST_PATTERNS:,}."
                " Write one expression for many modules",
                field=field,
            )
        for key in given:
            if len(key) > _LONGEST_PATTERN or not _SIMPLE.fullmatch(key):
                raise _complex(field, key)
        if sum(map(_steps, given)) > _MOST_STEPS:
            raise _complex(field, max(given, key=_steps))
        return cls(tuple((_compiled(field, key), _number(field, given[key])) for key in given))

    def of(self, module: str) -> float | None:
        """The number of the first expression that matches; None if none does."""
        return next((number for one, number in self.entries if one.match(module)), None)


@dataclass(frozen=True, slots=True)
class Scales:
    """The rank and the scale of each module."""

    rank: int
    alpha: float
    ranks: _Patterns
    alphas: _Patterns
    by_root: bool

    @classmethod
    def read(cls, config: Mapping[str, object]) -> Self:
        """Those of `adapter_config.json`. What it lacks has PEFT's defaults.

        Raises:
            ModelFileError: a value is wrong.
            UnsupportedModelError: a pattern is not simple.
        """
        rank = config.get("r", 8)
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MOST_RANK:
            raise _wrong("r", f"must be a whole number from 1 to {MOST_RANK:,}", rank)
        by_root = config.get("use_rslora") or False
        if not isinstance(by_root, bool):
            raise _wrong("use_rslora", "must be true or false", by_root)
        alpha = _number("lora_alpha", config.get("lora_alpha", 8))
        ranks, alphas = (_Patterns.read(config, f"{one}_pattern") for one in ("rank", "alpha"))
        return cls(rank, alpha, ranks, alphas, by_root)

    def rank_of(self, module: str) -> float:
        """The rank that a module must have."""
        found = self.ranks.of(module)
        return self.rank if found is None else found

    def scale_of(self, module: str, rank: int) -> float:
        """The factor of a module's change."""
        alpha = self.alphas.of(module)
        return (self.alpha if alpha is None else alpha) / (
            math.sqrt(rank) if self.by_root else rank
        )


def _number(field: str, value: object) -> float:
    """A number that may be in a scale."""
    wanted = "must be a number other than 0, of at most 1e30"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(field, wanted, value)
    if not 1e-30 <= abs(value) <= 1e30:  # NaN is no such number either
        raise _wrong(field, wanted, value)
    return value


def _steps(pattern: str) -> int:
    """Roughly the steps of a simple expression: the product of its choices."""
    outside = _GROUP.sub("", pattern)
    repeats = outside.count("*") + outside.count("+")
    choices: list[int] = [group.count("|") + 1 for group in (outside, *_GROUP.findall(pattern))]
    return prod(choices) * (1 << _BITS_OF_REPEAT * repeats)


def _compiled(field: str, key: str) -> re.Pattern[str]:
    try:
        return re.compile(rf"(.*\.)?({key})$")
    except re.error as error:
        raise _wrong(field, f"has a key that is no regular expression ({error})", key) from None


def _complex(field: str, key: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{CONFIG}: the key {key!r} of {field} is not supported: Heddle reads names of modules and"
        " simple regular expressions, which cannot take long. Write the names of the modules",
        param=field,
    )


def _wrong(field: str, problem: str, value: object) -> ModelFileError:
    return ModelFileError(f"{CONFIG}: {field} {problem}, got {value!r}", field=field)
