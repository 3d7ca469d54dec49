"""Weights that are pickles: how to know them, and the error that refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterable

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def check_no_pickle(owner: str, files: Iterable[str], hub_name: str = "") -> None:
    """Refuse a model whose weights are in one of `files`, names of files, if that is a pickle.

    Args:
        owner: the model in the error: a path, or a repository.
        files: the files that may have its weights.
        hub_name: ORG/NAME; empty if the model is not on the hub.

    Raises:
        UnsupportedModelError: a file is a pickle.
    """
    pickled = next((file for file in files if file.lower().endswith(_SUFFIXES)), None)
    if pickled is None:
        return
    convert = f"AutoModel.from_pretrained({hub_name or 'FOLDER'!r}).save_pretrained('NEW')"
    on_hub = (
        " Or ask https://huggingface.co/spaces/safetensors/convert for a pull request with"
        f" safetensors, and load {hub_name}@refs/pr/NUMBER."
    )
    raise UnsupportedModelError(
        f"{owner} has its weights in {pickled}, a pickle: opening a pickle can run any code, so"
        " Heddle opens none; take a copy with safetensors or GGUF files. If you trust the file,"
        f" convert it with transformers, with the model's own Auto class: {convert}, and its"
        f" tokenizer likewise.{on_hub if hub_name else ''}",
        param="model",
    )
