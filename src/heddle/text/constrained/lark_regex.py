"""Writes regular expressions into Lark grammars, where slashes delimit them."""

from __future__ import annotations

import re

_PIECE = re.compile(r"\\?.", re.DOTALL)
"""A character, with the backslash that escapes it."""
_WRITTEN = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
"""Forms with the same meaning for pieces that Lark does not allow between slashes."""
_IGNORES_SPACE = re.compile(r"\(\?[a-zA-Z]*x")


def lark_regex(pattern: str) -> str:
    """Lark for a regular expression.

    Raises:
        ValueError: the expression ends inside of an escape, or has lines whose ends are no text.
    """
    if "\n" in pattern and _IGNORES_SPACE.search(pattern):
        raise ValueError(
            "a regular expression with the flag x must be one line without comments, got several"
        )
    pieces = _PIECE.findall(pattern)
    if pieces[-1:] == ["\\"]:
        raise ValueError(f"the regular expression ends with a backslash, got {pattern[-20:]!r}")
    return f"/{''.join(_WRITTEN.get(piece, piece) for piece in pieces)}/"
