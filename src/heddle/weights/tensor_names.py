"""Translates between a format's names of tensors and their canonical names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CANONICAL_PREFIX = "layers."
_KINDS = ("weight", "bias")


class TensorNames:
    """The tensor names of a format, or of one architecture in it.

    A name is a prefix with the number of a layer, or nothing; then a part; then `.weight` or
    `.bias`.
    """

    def __init__(
        self,
        prefixes: Sequence[str],
        outside_layers: Mapping[str, str],
        in_layer: Mapping[str, str],
        irregular: Mapping[str, str],
        further: tuple[str, int] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Parts as stored, by canonical part.

        Args:
            prefixes: the text before the number of a layer in the files, which may be any of these.
            outside_layers: parts outside of layers.
            in_layer: parts of a layer.
            irregular: names in a layer that do not end as their canonical names do, in full.
            further: a second prefix, whose layers the files number from 0 again, and the canonical
                number of its first layer.
            aliases: other names of tensors, in full, with their canonical names. Those in a layer
                come without its prefix.
        """
        self._places = [*((one, 0) for one in prefixes), *([further] if further else [])]
        self._outside = _in_full(outside_layers)
        self._in_layer = _in_full(in_layer) | dict(irregular)
        self._canonical_outside = _inverse(self._outside) | dict(aliases or {})
        self._canonical_in_layer = _inverse(self._in_layer) | dict(aliases or {})

    def canonical(self, stored: str) -> str | None:
        """The canonical name of a stored tensor; None if it has none."""
        if stored in self._canonical_outside:
            return self._canonical_outside[stored]
        for prefix, first in self._places:
            number, rest = _of_layer(stored, prefix)
            if rest in self._canonical_in_layer:
                return f"{_CANONICAL_PREFIX}{first + number}.{self._canonical_in_layer[rest]}"
        return None

    def stored(self, canonical: str) -> str:
        """The name in the files for a canonical name; that name itself if there is none."""
        if canonical in self._outside:
            return self._outside[canonical]
        number, rest = _of_layer(canonical, _CANONICAL_PREFIX)
        if rest not in self._in_layer:
            return canonical
        prefix, first = next(place for place in reversed(self._places) if place[1] <= number)
        return f"{prefix}{number - first}.{self._in_layer[rest]}"


def _in_full(parts: Mapping[str, str]) -> dict[str, str]:
    return {
        f"{part}.{_kind(part, kind)}": f"{parts[part]}.{kind}" for part in parts for kind in _KINDS
    }


def _kind(part: str, kind: str) -> str:
    """The end of a canonical name. The bias of a norm is a vector with a name of its own."""
    return "bias.weight" if kind == "bias" and part.endswith("norm") else kind


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {stored: canonical for canonical, stored in names.items()}


def _of_layer(name: str, prefix: str) -> tuple[int, str]:
    """The number of a layer, and the rest of the name after it. (0, "") if it is of no layer."""
    match = re.fullmatch(rf"{re.escape(prefix)}(\d{{1,9}})\.(.+)", name)
    return (0, "") if match is None else (int(match[1]), match[2])
