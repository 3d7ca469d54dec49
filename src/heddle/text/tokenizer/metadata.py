"""Typed reading of the `tokenizer.ggml.*` keys of a model file.

Knows what kind of value a key must hold and complains in its name; what the values mean is
`vocabulary.py`'s and `tokenizer.py`'s business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX = "tokenizer.ggml."


class TokenizerMetadata:
    """A view of model metadata; names are keys without `tokenizer.ggml.`.

    Arrays may be any iterable, a NumPy array among them. Every method raises
    :class:`ModelFileError` naming the key whose value is not of its kind.
    """

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def text(self, name: str) -> str | None:
        value = self._metadata.get(PREFIX + name)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, value, "a string")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._metadata.get(PREFIX + name, default)
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def token_id(self, name: str, size: int) -> int | None:
        """An id in [0, size), or None where the file has none."""
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
            raise _wrong(name, value, f"a token id below {size}")
        return value

    def strings(self, name: str) -> list[str]:
        values = self._array(name, "strings")
        if values is None:
            raise missing(name)
        strings = [value for value in values if isinstance(value, str)]
        if len(strings) != len(values):
            raise _wrong(name, next(v for v in values if not isinstance(v, str)), "all strings")
        return strings

    def numbers(self, name: str, size: int) -> list[float] | None:
        """`size` numbers, or None where the file has none."""
        values = self._array(name, "numbers")
        if values is None:
            return None
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) != len(values):
            wrong = next(v for v in values if not isinstance(v, int | float))
            raise _wrong(name, wrong, "all numbers")
        if len(numbers) != size:
            raise ModelFileError(
                f"{PREFIX}{name} has {len(numbers)} entries for {size} tokens", field=PREFIX + name
            )
        return numbers

    def integers(self, name: str, size: int) -> list[int] | None:
        """`size` whole numbers, or None where the file has none."""
        numbers = self.numbers(name, size)
        if numbers is None:
            return None
        wrong = next((number for number in numbers if number % 1 != 0), None)
        if wrong is not None:  # NaN and infinities, too, leave NaN
            raise _wrong(name, wrong, "all whole numbers")
        return [int(number) for number in numbers]

    def _array(self, name: str, kind: str) -> list[object] | None:
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise _wrong(name, value, f"an array of {kind}")
        items: Iterable[object] = value.tolist() if hasattr(value, "tolist") else value
        return list(items)


def missing(name: str) -> ModelFileError:
    return ModelFileError(f"{PREFIX}{name} is missing", field=PREFIX + name)


def _wrong(name: str, value: object, expected: str) -> ModelFileError:
    return ModelFileError(f"{PREFIX}{name} must be {expected}, got {value!r}", field=PREFIX + name)
