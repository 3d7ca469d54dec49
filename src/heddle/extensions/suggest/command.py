"""`heddle suggest`: models by their memory use, and the best model for this machine."""

from collections.abc import Sequence
from typing import Annotated

import typer

from heddle.cli.text_table import text_table
from heddle.extensions.suggest.machine import Machine, this_machine
from heddle.extensions.suggest.suggestions import (
    EMBEDDINGS,
    RERANKERS,
    SUGGESTIONS,
    Suggestion,
    best_embeddings_for,
    best_for,
    rows,
)

_DISTURBED = 0.1
"""Share of the machine in other programs from which the rate is called an estimate."""


_EXPLANATIONS = {
    "tokens/s": "at most, for one conversation. A token reads the weights that it uses",
    "queries/s": "at most, for one short text after another. Each reads the weights once",
}


def suggest(
    *,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Models for embeddings and reranking.")
    ] = False,
) -> None:
    """Show recommended models by their memory use, with their speed on this machine."""
    machine = this_machine()
    if embeddings:
        _show(
            [*EMBEDDINGS, *RERANKERS],
            best_embeddings_for(machine.available, machine.rate),
            "queries/s",
            machine,
        )
    else:
        _show(SUGGESTIONS, best_for(machine.available, machine.rate), "tokens/s", machine)


def _show(suggestions: Sequence[Suggestion], best: Suggestion, unit: str, machine: Machine) -> None:
    """Print a table of models with their speeds in `unit`, and the best one."""
    head = ("memory", "model", "download", unit, "for")
    speeds = [one.speed(machine.rate) for one in suggestions]
    table = zip(rows(suggestions), speeds, strict=True)
    lines = [(*row[:3], speed, row[3]) for row, speed in table]
    print(text_table(head, lines, right={0, 2, 3}))
    print(
        f"\n{unit}: {_EXPLANATIONS[unit]}, and"
        f" this machine reads {machine.rate / 1e9:.1f} GB/s from memory (measured now)."
    )
    if machine.other_work > _DISTURBED:
        print(
            f"Other programs took {machine.other_work:.0%} of the machine meanwhile. The rate is an"
            " estimate for the machine without them; run this again when they have ended."
        )
    print(
        f"\nFor this machine ({machine}): heddle serve {best.name}"
        f" (at most {best.speed(machine.rate)} {unit})"
    )
