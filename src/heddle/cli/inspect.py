"""`heddle inspect`: shows the content of a model file, and how much memory the model needs."""

from typing import Annotated

import typer

from heddle.cli.options import Model
from heddle.config import DEFAULT_MODEL, cache_home


def inspect(
    model: Model = DEFAULT_MODEL,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show a model's metadata, tensors and memory use, without loading the model."""
    from heddle.weights.inspect import describe, render
    from heddle.weights.progress import on_console
    from heddle.weights.sources import resolve

    description = describe(resolve(model, cache_home(), on_console()))
    if as_json:
        print(description.to_json())
        return
    from rich.console import Console

    render(description, Console())
