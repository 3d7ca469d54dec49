"""Lark for members in a row, with commas between those that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def row(members: Sequence[tuple[str, bool]], more: str, comma: str = '","') -> str:
    """Lark for a row of members in this order.

    Args:
        members: Lark for each member, and whether the row must have it.
        more: Lark for members that may come after these, in any number; empty for none.
        comma: Lark for what stands between members.
    """
    rest = f" ({comma} {more})*" if more else ""
    first = [f"{more}{rest}"] if more else []  # rows by their first member
    may_be_empty = True
    for member, is_required in reversed(members):
        if is_required:
            first, may_be_empty = [], False
        first.append(f"{member}{rest}")
        rest = f" {comma} {member}{rest}" if is_required else f" ({comma} {member})?{rest}"
    choices = " | ".join(reversed(first))
    return f"({choices}){'?' if may_be_empty else ''}" if choices else ""
