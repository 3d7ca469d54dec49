"""Grammars of regular expressions in a language that the core reads."""

from __future__ import annotations

from heddle.grammars import Grammar


def regular(pattern: str, param: str = "grammar") -> Grammar:
    """A grammar whose texts match the pattern as a whole. It has no slash."""
    return Grammar.lark(f"start: /{pattern}/", param)
