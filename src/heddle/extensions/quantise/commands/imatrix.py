"""`heddle imatrix`: measure which columns of a model's matrices matter, on a text."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.options import Model
from heddle.errors import ModelSourceError
from heddle.sizes import counted


def imatrix(
    model: Model,
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="A text file in UTF-8.")],
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The GGUF file to write.")
    ],
    chunk: Annotated[
        int, typer.Option(min=1, help="Tokens of a piece; pieces do not see one another.")
    ] = 512,
) -> None:
    """Compute the importance matrix that `heddle quantize --imatrix` reads.

    The model runs in float32 with all weights in memory: 4 bytes a weight.
    """
    from heddle.extensions.quantise.export import exported_architecture, exported_name
    from heddle.extensions.quantise.export_rows import exported_columns, exported_parts
    from heddle.extensions.quantise.imatrix import write_imatrix
    from heddle.extensions.quantise.importance import input_sums
    from heddle.loading.find import find_model
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.formats import open_checkpoint
    from heddle.weights.progress import on_console

    progress = on_console()
    try:
        content = text.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelSourceError(f"cannot read {text}: {error}") from error
    with open_checkpoint(find_model(model, progress).path) as checkpoint:
        exported_architecture(checkpoint)  # refuses before the work what has no names in GGUF
        tokens = Tokenizer.of(checkpoint.tokenizer()).encode(content)
        progress.start(f"computing {checkpoint.path.name}", len(tokens), unit="tokens")
        try:
            sums = input_sums(checkpoint, tokens, chunk, progress.update)
        finally:
            progress.finish()
        stored = {
            exported_name(checkpoint, part): replace(
                found, squares=exported_columns(checkpoint, name, found.squares)
            )
            for name, found in sums.items()
            for part in exported_parts(checkpoint, name)
        }
    chunks = -(-len(tokens) // chunk)
    write_imatrix(output, stored, dataset=text.name, chunks=chunks, chunk_size=chunk)
    print(
        f"{output}  {counted(len(stored), 'matrix', 'matrices')}, {counted(len(tokens), 'token')}"
    )
