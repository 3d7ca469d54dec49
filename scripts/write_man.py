"""Writes the manual pages of `heddle` from its help: heddle.1 and heddle-COMMAND.1.

    python scripts/write_man.py [FOLDER]

FOLDER is build/man/man1 by default. `man -l FOLDER/heddle.1` shows a page.
"""

from __future__ import annotations

import argparse
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from heddle import cli
from heddle.cli.help import VARIABLES, panels

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent.parent / "build" / "man" / "man1"
SEE_ALSO = "The guides and the reference are in docs/ of the source."


def pages() -> dict[str, str]:
    """The pages by the name of their file."""
    cli._add_commands([])
    program: Any = typer.main.get_command(cli.app)
    top = typer.Context(program, info_name="heddle", **program.context_settings)
    return dict(_pages(program, top))


def _pages(command: Any, ctx: Any) -> Iterator[tuple[str, str]]:
    below = {name: command.get_command(ctx, name) for name in _names(command, ctx)}
    yield f"{_name(ctx)}.1", "\n".join(_page(command, ctx, below)) + "\n"
    for name, one in below.items():
        yield from _pages(one, typer.Context(one, info_name=name, parent=ctx))


def _names(command: Any, ctx: Any) -> list[str]:
    return command.list_commands(ctx) if hasattr(command, "list_commands") else []


def _name(ctx: Any) -> str:
    return ctx.command_path.replace(" ", "-")


def _page(command: Any, ctx: Any, below: dict[str, Any]) -> Iterator[str]:
    """The lines of a page, in the macros of man(7)."""
    about, _, more = (command.help or "").strip().partition("\n")
    yield f'.TH "{_name(ctx).upper()}" "1" "" "heddle {_version()}" "Heddle"'
    yield from (".SH NAME", f"{roff(_name(ctx))} \\- {roff(about.rstrip('.'))}")
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield from (".SH SYNOPSIS", f".B {roff(ctx.command_path)}", roff(usage))
    if more.strip():
        yield from (".SH DESCRIPTION", roff(" ".join(more.split())))
    for panel, rows in panels(command, ctx).items():
        yield f".SH {panel.upper()}"
        for names, text in rows:
            yield from (".TP", f".B {roff(names)}", roff(text))
    if below:
        yield ".SH COMMANDS"
    for name, one in below.items():
        yield from (".TP", f".B {roff(name)}", roff(one.get_short_help_str(1000)))
    if command.epilog:
        yield from (".SH ENVIRONMENT", roff(VARIABLES))
    above = ctx.parent.command_path.replace(" ", "-") if ctx.parent else ""
    others = [above, *(f"{_name(ctx)}-{name}" for name in below)]
    listed = ", ".join(f"{roff(one)}(1)" for one in others if one)
    yield from (".SH SEE ALSO", *([f"{listed}."] if listed else []), roff(SEE_ALSO))


def roff(text: str) -> str:
    """A text as roff has it, on one line. A dash is that of options, which can be copied."""
    one_line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", one_line)


def _version() -> str:
    try:
        return version("heddle")
    except PackageNotFoundError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, metavar="FOLDER")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (folder / name).write_text(page, "utf-8")
    print(folder)


if __name__ == "__main__":
    main()
