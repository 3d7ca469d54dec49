"""Settings of extensions, which a config carries beside its own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from heddle.errors import ConfigError
from heddle.settings import validate

if TYPE_CHECKING:
    from collections.abc import Iterable

S = TypeVar("S", bound="ExtensionSettings")
C = TypeVar("C", bound="Extended")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionSettings:
    """Settings of one extension. Its class derives from the class that the config carries."""

    def __post_init__(self) -> None:
        validate(self)


class Extended:
    """A config that carries settings of extensions."""

    __slots__ = ()

    extensions: tuple[ExtensionSettings, ...]

    def of(self, kind: type[S]) -> S:
        """The settings of class `kind`: those that the config carries, else the defaults."""
        for one in self.extensions:
            if isinstance(one, kind):
                return one
        return kind()

    def having(self: C, settings: ExtensionSettings) -> C:
        """A copy that carries `settings` in place of those of the same class."""
        others = (one for one in self.extensions if type(one) is not type(settings))
        return dataclasses.replace(self, extensions=(*others, settings))  # type: ignore[type-var]


def canonical(settings: Iterable[S], kind: type[S]) -> tuple[S, ...]:
    """The settings in one order, without those at their defaults, so that equal configs are equal.

    Raises:
        ConfigError: one is not of class `kind`, or two have one class.
    """
    by_name: dict[str, S] = {}
    for one in settings:
        if not isinstance(one, kind):
            raise ConfigError(
                f"extensions must hold settings of class {kind.__name__}, got {one!r}",
                param="extensions",
            )
        name = f"{type(one).__module__}:{type(one).__qualname__}"
        if name in by_name:
            raise ConfigError(
                f"extensions holds {type(one).__name__} twice; name each class once",
                param="extensions",
            )
        by_name[name] = one
    return tuple(one for _, one in sorted(by_name.items()) if one != type(one)())
