"""Writes the table in docs/sampling.md from the program's table of sampling parameters.

    python scripts/write_tables.py [--check]

With --check it writes nothing, and exits with 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from enum import Enum
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from heddle.parameters import Api
from heddle.types import PARAMETERS

if TYPE_CHECKING:
    from heddle.parameters import Parameter

PAGE = Path(__file__).parent.parent / "docs" / "sampling.md"


BEGIN, END = "<!-- parameters, by scripts/write_tables.py -->\n", "<!-- end of parameters -->\n"


def written(page: str) -> str:
    """The page with the program's table of parameters between two comments."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} must have {BEGIN.strip()} and {END.strip()}")
    return "".join([before, begin, *(f"{line}\n" for line in _parameters()), end, after])


def _parameters() -> list[str]:
    table = [_row(row) for row in PARAMETERS if row.apis]
    messages = [name for row in PARAMETERS for name in row.names(Api.MESSAGES)]
    library = [row.name for row in PARAMETERS if not row.apis]
    return [
        "| parameter | default | range | definition | source |",
        "|---|---|---|---|---|",
        *table,
        "",
        *wrap(f"`/v1/messages` takes {_listed(messages)}.", 100),
        "",
        *wrap(
            f"{_listed(library)} are fields of `SamplingParams` only, not of HTTP requests.",
            100,
        ),
        "",
    ]


def _row(row: Parameter) -> str:
    cells = (
        ", ".join(f"`{name}`" for name in (row.name, *row.aliases)),
        _default(row.default),
        row.kind.words,
        row.doc,
        row.source,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(value: Any) -> str:
    if value is True or value is False:
        return str(value).lower()
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{_item(one)}`" for one in value)
    return f"{value:g}"


def _item(one: Any) -> str:
    return str(one.value) if isinstance(one, Enum) else json.dumps(one)


def _listed(names: list[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="Compare, write nothing.")
    page = PAGE.read_text("utf-8")
    new = written(page)
    if not parser.parse_args().check:
        PAGE.write_text(new, "utf-8")
    elif new != page:
        sys.exit("docs/sampling.md differs from the table of parameters; run write_tables.py")


if __name__ == "__main__":
    main()
