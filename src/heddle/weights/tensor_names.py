"""Translates between a format's names of tensors and their canonical names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CANONICAL_PREFIX = "layers."
_KINDS = ("weight", "bias")
_Names = dict[bool, dict[str, str]]  # by whether the tensor belongs to a layer


class TensorNames:
    """The tensor names of a format, or of one architecture in it.

    A name is a prefix with the number of a layer, or nothing; then a part; then `.weight` or
    `.bias`.
    """

    def __init__(
        self,
        prefix: str,
        outside_layers: Mapping[str, str],
        in_layer: Mapping[str, str],
        irregular: Mapping[str, str],
    ) -> None:
        """Parts as stored, by canonical part. `prefix` comes before the number of a layer.

        `irregular` are names in a layer that do not end as their canonical names do, in full.
        """
        self._prefix = prefix
        self._stored: _Names = {
            False: _in_full(outside_layers),
            True: _in_full(in_layer) | dict(irregular),
        }
        self._canonical: _Names = {
            in_layer: {stored: canonical for canonical, stored in names.items()}
            for in_layer, names in self._stored.items()
        }

    def canonical(self, stored: str) -> str | None:
        """The canonical name of a stored tensor; None if it has none."""
        return _translate(stored, self._prefix, _CANONICAL_PREFIX, self._canonical)

    def stored(self, canonical: str) -> str:
        """The name in the files for a canonical name; that name itself if there is none."""
        return _translate(canonical, _CANONICAL_PREFIX, self._prefix, self._stored) or canonical


def _in_full(parts: Mapping[str, str]) -> dict[str, str]:
    return {f"{part}.{kind}": f"{parts[part]}.{kind}" for part in parts for kind in _KINDS}


def _translate(name: str, prefix: str, new_prefix: str, names: _Names) -> str | None:
    match = re.fullmatch(rf"(?:{re.escape(prefix)}(?P<layer>\d{{1,9}})\.)?(?P<rest>.+)", name)
    if match is None:
        return None
    translated = names[match["layer"] is not None].get(match["rest"])
    where = "" if match["layer"] is None else f"{new_prefix}{match['layer']}."
    return None if translated is None else f"{where}{translated}"
