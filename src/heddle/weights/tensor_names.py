"""Translates between a format's names of tensors and their canonical names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CANONICAL_PREFIX = "layers."
_Parts = dict[bool, dict[str, str]]  # by whether the tensor belongs to a layer


class TensorNames:
    """The tensor names of a format, or of one architecture in it.

    A name is a prefix with the number of a layer, or nothing; then a part; then `.weight` or
    `.bias`.
    """

    def __init__(
        self, prefix: str, outside_layers: Mapping[str, str], in_layer: Mapping[str, str]
    ) -> None:
        """Parts as stored, by canonical part. `prefix` comes before the number of a layer."""
        self._prefix = prefix
        self._stored: _Parts = {False: dict(outside_layers), True: dict(in_layer)}
        self._canonical: _Parts = {
            in_layer: {stored: canonical for canonical, stored in parts.items()}
            for in_layer, parts in self._stored.items()
        }

    def canonical(self, stored: str) -> str | None:
        """The canonical name of a stored tensor; None if it has none."""
        return _translate(stored, self._prefix, _CANONICAL_PREFIX, self._canonical)

    def stored(self, canonical: str) -> str:
        """The name in the files for a canonical name; that name itself if there is none."""
        return _translate(canonical, _CANONICAL_PREFIX, self._prefix, self._stored) or canonical


def _translate(name: str, prefix: str, new_prefix: str, parts: _Parts) -> str | None:
    match = re.fullmatch(
        rf"(?:{re.escape(prefix)}(?P<layer>\d{{1,9}})\.)?(?P<part>.+)\.(?P<kind>weight|bias)", name
    )
    if match is None:
        return None
    layer, part, kind = match["layer"], match["part"], match["kind"]
    translated = parts[layer is not None].get(part)
    where = "" if layer is None else f"{new_prefix}{layer}."
    return None if translated is None else f"{where}{translated}.{kind}"
