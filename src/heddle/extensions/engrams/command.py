"""`heddle engram`: build, inspect, merge and prune engram tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.help import VARIABLES, Command, group
from heddle.cli.options import MODEL_HELP, AsJson, with_settings
from heddle.config import HubConfig
from heddle.errors import ConfigError
from heddle.hub_place import hub_place
from heddle.sizes import parse_size

if TYPE_CHECKING:
    from heddle.extensions.engrams.build import Form, Made
    from heddle.text.tokenizer.tokenizer import Tokenizer

Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE.engr", help="The table to write.")
]
Shortest = Annotated[
    int, typer.Option(min=1, max=16, help="Tokens of the shortest n-grams that stay.")
]
MinCount = Annotated[
    int, typer.Option(min=1, help="Drop n-grams that the texts have less often than this.")
]
Top = Annotated[
    int | None, typer.Option(min=1, help="Tokens kept after each n-gram.", show_default="all")
]
Memory = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Budget for counting and sorting; the rest goes to files beside the output. The"
        " tokenizer takes memory in addition. The budget does not change the table.",
    ),
]
Table = Annotated[Path, typer.Argument(metavar="FILE.engr", help="An engram table.")]

engrams = group(help="Build, inspect, merge and prune engram tables.")


@engrams.command("build", cls=Command, epilog=VARIABLES)
@with_settings
def build(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXTS...",
            help="Files in UTF-8, folders of such files, or - for standard input. No n-gram crosses"
            " the end of a file.",
        ),
    ],
    *,
    output: Output,
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help=f"The model whose tokens the table has. {MODEL_HELP}"),
    ],
    order: Annotated[int, typer.Option(min=1, max=16, help="Tokens of the longest n-grams.")] = 3,
    shortest: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=16,
            help="Tokens of the shortest n-grams, which are used where no longer one is known.",
            show_default="1; --order in version 1",
        ),
    ] = None,
    min_count: MinCount = 1,
    top: Annotated[
        int, typer.Option(min=1, help="Tokens kept after each n-gram, the most frequent ones.")
    ] = 16,
    memory: Memory = "1GiB",
    version: Annotated[
        int,
        typer.Option(
            "--format", min=1, max=2, help="2, or 1 for other programs (n-grams of one length)."
        ),
    ] = 2,
    hub: HubConfig,
) -> None:
    """Count which tokens follow which in texts, and write a table."""
    from heddle.extensions.engrams.build import Form, build
    from heddle.extensions.engrams.format import Vocabulary
    from heddle.extensions.engrams.grouping import Keep
    from heddle.extensions.engrams.texts import find_texts
    from heddle.weights.progress import on_console

    progress = on_console()
    least = shortest or (order if version == 1 else 1)
    form = Form(order, least, Keep(min_count, top), version, parse_size(memory))
    found = find_texts(texts, progress.note)
    tokenizer = _tokenizer(model, hub)
    vocabulary = Vocabulary.of(tokenizer.vocabulary_entries())
    _print_made(build(output, found, tokenizer, vocabulary, form, progress))


@engrams.command("inspect", cls=Command, epilog=VARIABLES)
@with_settings
def inspect(
    table: Table,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help=f"Check the vocabulary, and show n-grams as text. {MODEL_HELP}"
        ),
    ] = None,
    find: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Show what follows this text. Needs --model."),
    ] = None,
    show: Annotated[
        int, typer.Option(min=0, help="How many of the most frequent n-grams to show.")
    ] = 5,
    as_json: AsJson = False,
    hub: HubConfig,
) -> None:
    """Check a table, and show its header, its n-grams by length, and the most frequent ones."""
    import json

    from heddle.extensions.engrams.reader import Engram
    from heddle.extensions.engrams.report import Report

    if find is not None and model is None:
        raise ConfigError("--find needs --model, whose tokenizer reads the text")
    tokenizer = None if model is None else _tokenizer(model, hub)
    with Engram.open(table) as opened:
        report = Report.of(opened, tokenizer, find, show)
    print(json.dumps(report.as_json(), indent=2) if as_json else report.as_text())


@engrams.command("merge", cls=Command)
def merge(
    tables: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="Engram tables of one vocabulary, version 2."),
    ],
    *,
    output: Output,
    weight: Annotated[
        list[float] | None,
        typer.Option(
            metavar="FACTOR",
            help="Factor of a table's frequencies; once for each table, in their order."
            " Default: 1 for all.",
        ),
    ] = None,
    min_count: MinCount = 1,
    top: Top = None,
    memory: Memory = "1GiB",
) -> None:
    """Add the frequencies of several tables."""
    _merge(output, tables, weight or [1.0] * len(tables), _form(1, min_count, top, memory))


@engrams.command("prune", cls=Command)
def prune(
    table: Table,
    *,
    output: Output,
    min_count: MinCount = 1,
    top: Top = None,
    shortest: Shortest = 1,
    memory: Memory = "1GiB",
) -> None:
    """Make a table smaller: drop rare n-grams, rare tokens and short n-grams."""
    _merge(output, [table], [1.0], _form(shortest, min_count, top, memory))


def _form(shortest: int, min_count: int, top: int | None, memory: str) -> "Form":
    from heddle.extensions.engrams.build import Form
    from heddle.extensions.engrams.grouping import Keep

    return Form(16, shortest, Keep(min_count, top), memory=parse_size(memory))


def _merge(output: Path, tables: Sequence[Path], weights: Sequence[float], form: "Form") -> None:
    from heddle.extensions.engrams.merge import merge
    from heddle.weights.progress import on_console

    _print_made(merge(output, tables, weights, form, on_console()))


def _print_made(made: "Made") -> None:
    entries = ", ".join(f"{count:,} of {order}" for order, count in made.entries.items())
    print(f"{made.path}  {made.nbytes / 1e6:,.1f} MB; n-grams by tokens: {entries}")


def _tokenizer(model: str, hub: HubConfig) -> "Tokenizer":
    from heddle.loading.find import find_model
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.formats import open_checkpoint
    from heddle.weights.progress import on_console

    found = find_model(model, on_console(), hub_place(hub))
    with open_checkpoint(found.path) as checkpoint:
        return Tokenizer.of(checkpoint.tokenizer())
