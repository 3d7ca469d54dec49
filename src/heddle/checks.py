"""Checks of callers' arguments. Each raises an InvalidRequestError with the field and its value."""

from __future__ import annotations

import math
import operator
import reprlib
from numbers import Real

from heddle.errors import InvalidRequestError

MAX_SALT_LENGTH = 256


def check(condition: bool, param: str, value: object, expected: str) -> None:
    if not condition:
        raise InvalidRequestError(
            f"{param} must be {expected}, got {reprlib.repr(value)}", param=param
        )


def integer(value: object, param: str) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # raises if it is not an integer
    except TypeError:
        raise InvalidRequestError(
            f"{param} must be an integer, got {value!r}", param=param
        ) from None


def number(value: object, param: str) -> float:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    check(math.isfinite(number), param, value, "a finite number")
    return number


def check_salt(salt: object) -> None:
    check(
        salt is None
        or (isinstance(salt, str) and 0 < len(salt) <= MAX_SALT_LENGTH and salt[0] != "\0"),
        "cache_salt",
        salt,
        f"a string of 1 to {MAX_SALT_LENGTH} characters, the first not NUL",
    )
