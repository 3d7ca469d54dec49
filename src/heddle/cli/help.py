"""Help pages: options by group, in lines that fit any terminal.

Typer's own pages are tables. With options as long as `--chat-template-kwargs`, a table leaves four
words of help a line in 80 columns, and one word in 40.
"""

from __future__ import annotations

import re
import shutil
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from heddle.settings import GROUPS

_PANELS = ("Arguments", "Options", *(group.capitalize() for group in GROUPS))
"""The panels of a page, in their order."""
_TYPE = re.compile(r"<(str|int|float)( range)?>")
_KINDS = {"str": "TEXT", "int": "NUMBER", "float": "DECIMAL"}
"""Kinds of values by Typer's name, as options of settings call them."""
_WIDE = 72
"""Columns from which help stands beside the options. In fewer columns it stands below them."""

VARIABLES = (
    'Each setting below "Options" has an environment variable, such as HEDDLE_KV_CACHE for'
    " --kv-cache, and a key in the file of --config, such as kv_cache. An option goes before its"
    " variable, and that before the file."
)
"""The line about environment variables, at the end of the pages of commands with settings."""


def page_width() -> int:
    """The width of help pages: that of the terminal, at most 80. Typer's own minimum is 50."""
    return max(20, min(shutil.get_terminal_size().columns, 80) - 2)


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    with formatter.section(title):
        formatter.write_dl(rows, col_max=26 if formatter.width >= _WIDE else 4)


def panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """The parameters of a command by panel: the names of each, and its help."""
    found: dict[str, list[tuple[str, str]]] = {panel: [] for panel in _PANELS}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        names, text = record
        if parameter.param_type_name == "argument":
            names = names.partition(" <")[0]  # MODEL, not MODEL <str>
        names = _TYPE.sub(lambda found: _KINDS[found[1]], names)
        if parameter.secondary_opts:  # --prefix-cache and --no-prefix-cache
            names = f"--[no-]{parameter.opts[0].removeprefix('--')}"
        kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
        found[getattr(parameter, "rich_help_panel", None) or kind].append((names, text))
    return {panel: rows for panel, rows in found.items() if rows}


def _format_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    for panel, rows in panels(command, ctx).items():
        _write(formatter, panel, rows)


class Command(TyperCommand):
    """A command whose help page has a panel for each group of settings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the panels."""
        _format_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """A command with subcommands. Its help page has the first sentence of each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments. Without any, print the page and exit with 2."""
        if not (args or ctx.resilient_parsing):  # it is set where a shell completes
            print(ctx.get_help(), file=sys.stderr)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the panels, then the subcommands."""
        _format_parameters(self, ctx, formatter)
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, one.get_short_help_str(1000)) for name, one in commands.items() if one]
        _write(formatter, "Commands", rows)


def group(cls: type[Group] = Group, **more: Any) -> typer.Typer:
    """A program or a command with subcommands, with help pages of this module."""
    return typer.Typer(cls=cls, rich_markup_mode=None, **more)
