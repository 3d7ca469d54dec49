"""Plain text tables. Their lines do not depend on the terminal's width."""

from collections.abc import Collection, Sequence


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> str:
    """Rows below a header, in columns two spaces apart.

    Args:
        header: titles of the columns.
        rows: texts of the cells.
        right: indices of right-aligned columns. The other columns are left-aligned.
    """
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def cell(place: int, text: str) -> str:
        return text.rjust(widths[place]) if place in right else text.ljust(widths[place])

    return "\n".join(
        "  ".join(cell(place, text) for place, text in enumerate(line)).rstrip() for line in lines
    )
