"""Values of extensions that a value of the core carries: settings in a config, parameters."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.errors import HeddleError

V = TypeVar("V")
C = TypeVar("C", bound="Extended")


class Extended:
    """A value that carries values of extensions, at most one of each class."""

    __slots__ = ()

    extensions: tuple[Any, ...]

    def of(self, kind: type[V]) -> V:
        """The value of class `kind`: the one that is carried, else the default."""
        for one in self.extensions:
            if isinstance(one, kind):
                return one
        return kind()

    def having(self: C, value: object) -> C:
        """A copy that carries `value` in place of that of the same class."""
        others = (one for one in self.extensions if type(one) is not type(value))
        return dataclasses.replace(self, extensions=(*others, value))  # type: ignore[type-var]


def canonical(values: Iterable[V], kind: type[V], error: type[HeddleError]) -> tuple[V, ...]:
    """The values in one order, without those at their defaults, so that equal ones are equal.

    Raises:
        HeddleError: one is not of class `kind`, or two have one class. The class is `error`.
    """
    by_name: dict[str, V] = {}
    for one in values:
        if not isinstance(one, kind):
            raise error(
                f"extensions must hold values of class {kind.__name__}, got {one!r}",
                param="extensions",
            )
        name = f"{type(one).__module__}:{type(one).__qualname__}"
        if name in by_name:
            raise error(
                f"extensions holds {type(one).__name__} twice; name each class once",
                param="extensions",
            )
        by_name[name] = one
    return tuple(one for _, one in sorted(by_name.items()) if one != type(one)())
