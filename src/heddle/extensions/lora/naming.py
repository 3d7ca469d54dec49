"""Canonical names of the matrices that an adapter changes.

An adapter has the names of its own format, which need not be the format of the model's files. The
family of the model has the names of both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from heddle.doors import family_with
from heddle.errors import UnsupportedModelError
from heddle.weights.gguf import names as gguf_names
from heddle.weights.huggingface import names as folder_names
from heddle.weights.huggingface.experts import stacked_label

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from heddle.extensions.lora.pairs import Pair
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.tensor_names import TensorNames

_INTERLEAVED = "rope.interleaved"
_EXPERT = re.compile(r".+\.experts\.(\d{1,9})\..+")
_STACKS = re.compile(
    r"(?:.+\.)?(layers\.\d{1,9}\.)(?:mlp|block_sparse_moe)\.experts(?:\.base_layer)*\.weight"
)
"""How PEFT names changes of the parameters of a module that has all experts of a layer."""
STACKS = ".mlp.experts.weight"
"""Ends the name of one of these stacks. Its shape tells which one it is."""
_ENOUGH = 256
"""Matrices of an adapter by which its architecture is known."""


class Adapter(Protocol):
    """An open adapter; see `peft_folder.py` and `gguf_file.py`."""

    @property
    def path(self) -> Path: ...
    @property
    def format(self) -> str: ...
    @property
    def pairs(self) -> Sequence[Pair]: ...


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of one architecture in the adapter's format.

    Attributes:
        tables: tables of names, of which the first that knows a name says what it means.
        is_other_format: whether the model's files have another format.
        interleaved: whether the rows of q and k are ordered so that rotation pairs neighbours.
        has_made: whether the model has matrices that are made from those that the format has.
    """

    tables: tuple[TensorNames, ...]
    is_other_format: bool
    interleaved: bool
    has_made: bool = False

    def canonical(self, matrix: str) -> str | None:
        """The canonical name of a matrix, with `.weight`; None if it has none.

        For the matrix of one expert it is that of the stack.
        """
        label = stacked_label(matrix)
        found = (table.canonical(label) for table in self.tables)
        name = next((name for name in found if name is not None), None)
        match = _STACKS.fullmatch(matrix)
        if name is None and match is not None and not self.has_made:
            return f"{match[1]}{STACKS.removeprefix('.')}"
        return name


def expert_of(matrix: str) -> int | None:
    """The number of the expert in a matrix' name; None: it has none."""
    match = _EXPERT.fullmatch(matrix)
    return None if match is None else int(match[1])


def naming_of_folder(adapter: Adapter, base: Checkpoint) -> Naming:
    """The names of an adapter of PEFT: those of the first architecture that knows its matrices.

    Raises:
        UnsupportedModelError: no family has the model's architecture.
    """
    namings = [_of_folder(one, base) for one in _folder_architectures(base)]

    def known(naming: Naming) -> int:
        some = adapter.pairs[:_ENOUGH]
        return sum(naming.canonical(pair.matrix) is not None for pair in some)

    return max(namings, key=known)  # the first of equal ones


def _folder_architectures(base: Checkpoint) -> list[str]:
    """Values of `model_type` that the model may have had, the likeliest first."""
    if base.format == "hf":
        return [base.architecture]
    family = family_with("gguf", base.architecture)
    if family is None or not family.hf:
        raise UnsupportedModelError(
            f"{base.path}: no Hugging Face folder has the architecture {base.architecture!r}, so no"
            " adapter of PEFT fits. Give an adapter in GGUF",
            param="general.architecture",
        )
    plain = base.architecture.replace("-", "_")
    return sorted(family.hf, key=lambda one: (one != plain, not one.startswith(plain)))


def _of_folder(architecture: str, base: Checkpoint) -> Naming:
    read = base.hyperparameters
    tables = tuple(
        folder_names.tensor_names(
            architecture,
            base=prefix,
            layers=read.get("layers"),
            has_experts=bool(read.get("experts")),
        )
        for prefix in folder_names.bases_of(architecture)
    )
    own = folder_names.names_of(architecture)
    is_interleaved = own.values.get(_INTERLEAVED) is True
    return Naming(tables, base.format != "hf", is_interleaved, own.make is not None)


def naming_of_file(architecture: str, base: Checkpoint) -> Naming:
    """The names of an adapter in GGUF.

    Raises:
        UnsupportedModelError: the adapter is of another architecture than the model.
    """
    family = family_with("gguf", architecture)
    fits = architecture == base.architecture
    if base.format == "hf":
        fits = family is not None and base.architecture in family.hf
    if not fits:
        raise UnsupportedModelError(
            f"the adapter is for the architecture {architecture!r}, and {base.path} has"
            f" {base.architecture!r}; load the model that the adapter was trained for",
            param="general.architecture",
        )
    values = gguf_names.names_of(architecture).values
    tables = (gguf_names.tensor_names(architecture),)
    return Naming(tables, base.format != "gguf", values.get(_INTERLEAVED) is True)
