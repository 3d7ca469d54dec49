"""`heddle quantize`: write a model as a GGUF file with quantised matrices."""

from pathlib import Path
from typing import Annotated

import typer

from heddle.extensions.quantise.target import Target


def quantize(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A .gguf file, a Hugging Face folder, or an alias."),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST.gguf", help="The file to write.")],
    *,
    kind: Annotated[
        Target,
        typer.Option(
            "--type",
            metavar="TYPE",
            help=f"Type of matrices: {', '.join(Target)}; embedding and output keep more bits.",
        ),
    ],
    imatrix: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Importance matrix, as `heddle imatrix` writes it."),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=0, max=1024, help="Threads; 0 = one per usable core.")
    ] = 0,
) -> None:
    """Quantise the matrices that a model stores as floats, and write a GGUF file."""
    from heddle.extensions.quantise.imatrix import read_imatrix
    from heddle.extensions.quantise.quantising import quantise_file
    from heddle.loading.find import find_model
    from heddle.weights.mix import Mix
    from heddle.weights.progress import on_console

    progress = on_console()
    path = find_model(source, progress).path
    importance = None if imatrix is None else read_imatrix(imatrix)
    written = quantise_file(path, target, Mix.named(kind.value), importance, progress, threads)
    print(f"{written.path}  {written.nbytes / 1e6:,.0f} MB of tensors")
    if written.kept:
        print(f"already quantised, so they stay as they are: {written.kept}")
