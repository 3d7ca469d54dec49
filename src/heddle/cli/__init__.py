"""The `heddle` command: arguments, output and exit code. Each command has a module.

Commands import the engine inside their functions, so that `heddle --help` does not load it.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.help import VARIABLES, Command, Group, group, page_width
from heddle.cli.newcomer import first_page
from heddle.doors import extensions, refer
from heddle.errors import HeddleError
from heddle.settings import debug_wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells."""
BROKEN_PIPE = 141
"""Exit code if nobody reads the output: 128 plus the number of SIGPIPE, as in shells."""

USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base class of all errors in arguments. Typer does not export it."""

_COMMANDS = {
    "serve": "heddle.cli.serve:serve",
    "chat": "heddle.cli.chat:chat",
    "pull": "heddle.cli.pull:pull",
    "inspect": "heddle.cli.inspect:inspect",
    "list": "heddle.cli.cached:list_models",
    "rm": "heddle.cli.cached:remove",
    "config": "heddle.cli.config:config",
}
"""The function of each command that is no extension's, as `refer` reads it."""


class _Program(Group):
    """The command `heddle`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments. Without any, show how to begin."""
        if not (args or ctx.resilient_parsing):
            print(first_page())
            ctx.exit()
        return super().parse_args(ctx, args)


app = group(
    cls=_Program,
    name="heddle",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from heddle.cli.version import described

        print(described())
        raise typer.Exit


@app.callback()
def heddle(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print version, commit, instruction levels and extras.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show tracebacks, and log at level DEBUG (HEDDLE_DEBUG)."),
    ] = False,
) -> None:
    """LLM inference server. One forward pass per step computes tokens of all requests."""


def _add_commands(arguments: Sequence[str]) -> None:
    """Add the command that the arguments name; all commands if they name none.

    Importing the others and making their options takes 40 ms of a start. Options are settings, also
    those of extensions.

    Raises:
        ConfigError: an extension cannot join.
    """
    app.registered_commands.clear()  # of an earlier command line of this process
    app.registered_groups.clear()
    brought = {
        name: reference
        for extension in extensions().values()
        for name, reference in extension.commands.items()
    }
    known = {**_COMMANDS, **brought}
    named = next((one for one in arguments if not one.startswith("-")), "")
    for name in [named] if named in known else known:
        command = refer(known[name])
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            epilog = None if name in brought else VARIABLES
            app.command(name, cls=Command, epilog=epilog)(command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Errors become one line on stderr."""
    debug = debug_wanted() or "--debug" in arguments
    logging.getLogger("heddle").setLevel(logging.DEBUG if debug else logging.NOTSET)
    try:
        _add_commands(arguments)
        code: int | None = app(
            list(arguments),
            prog_name="heddle",
            standalone_mode=False,
            terminal_width=page_width(),
        )
        if sys.stdout is not None:  # None after `>&-`
            sys.stdout.flush()
        return code or 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except HeddleError as error:
        return _fail(error.message, 2, debug)
    except USAGE_ERROR as error:
        return _fail(_usage_error(error), 2, debug)
    except BrokenPipeError:
        return _left_by_reader()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer turns it into sys.exit(1)
            return _left_by_reader()
        raise
    except Exception as error:
        hint = "" if debug else " (set HEDDLE_DEBUG=1 for the traceback)"
        return _fail(f"{type(error).__name__}: {error}{hint}", 1, debug)


def _usage_error(error: Any) -> str:
    said: str = error.format_message()
    if type(error).__name__ == "NoSuchOption" and error.ctx is not None:
        listed = f"`{error.ctx.command_path} --help` lists the options"
        said = f"{said}. {listed}; an extension that is not installed may bring others"
    return said


def _left_by_reader() -> int:
    """End quietly: the reader closed the pipe, as in `heddle inspect | head`."""
    # Python would report the error again when it flushes standard output at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print("heddle:", " ".join(message.split()), file=sys.stderr)
    return code
