"""`heddle merge`: write a model with the changes of an adapter as a GGUF file."""

from pathlib import Path
from typing import Annotated

import typer


def merge(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A .gguf file, a Hugging Face folder, or an alias."),
    ],
    adapter: Annotated[
        str,
        typer.Argument(metavar="ADAPTER", help="A folder of PEFT, a .gguf file, or ORG/NAME."),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST.gguf", help="The file to write.")],
) -> None:
    """Merge a LoRA adapter into its model's float matrices, and write a GGUF file."""
    from heddle.extensions.lora.merging import merge_files
    from heddle.loading.find import find_model
    from heddle.weights.progress import on_console

    progress = on_console()
    written = merge_files(find_model(source, progress).path, adapter, target, progress)
    print(f"{written.path}  {written.nbytes / 1e6:,.0f} MB of tensors")
