"""Describes a model file and the memory it needs.

This reads only the header. It never refuses odd or missing hyperparameters: it describes what the
file says, and everything else is unknown.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from heddle.weights.formats import read_outline
from heddle.weights.state_sizes import known_count, kv_bytes_per_token, state_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from heddle.weights.checkpoint import Outline
    from heddle.weights.tensor_types import TensorType


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """All tensors of one type.

    Attributes:
        type: name of the type.
        count: number of tensors.
        elements: elements of all tensors.
        bytes: bytes of all tensors.
        supported: whether Heddle can run tensors of this type.
    """

    type: str
    count: int
    elements: int
    bytes: int
    supported: bool


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of memory to run the model. None if the file does not say enough.

    Attributes:
        weights: bytes of all tensors as stored.
        kv_per_token: bytes of the keys and values of one token in all layers, or of its latents,
            by KV type. Types that cannot hold heads of the model's size are left out.
        kv_context: bytes of the KV cache of one sequence that fills the context, by KV type.
        kv_kind: content of the KV cache: "keys and values" or "latents".
        state: bytes of the fixed-size state of one sequence; 0 if no layer is recurrent.
    """

    weights: int
    kv_per_token: Mapping[str, int] | None
    kv_context: Mapping[str, int] | None
    kv_kind: str = "keys and values"
    state: int = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of a model.

    Attributes:
        count: number of experts in a layer.
        used: experts that compute each token; None if the file does not say.
        active_parameters: elements of the tensors that compute one token; None without `used`.
        active_bytes: their bytes; None without `used`.
    """

    count: int
    used: int | None
    active_parameters: int | None
    active_bytes: int | None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The description of one model file. None means that the file does not say.

    Attributes:
        path: absolute path of the file.
        format: name and version of the format.
        file_bytes: size of the file.
        architecture: name of the architecture.
        name: name of the model.
        parameters: elements of all tensors.
        context: most tokens of a sequence.
        vocabulary: number of tokens.
        experts: mixture of experts; None if the model is dense.
        tensors: tensors by storage type, the largest group first.
        memory: memory to run the model.
        answers: how the model writes calls and reasoning, in words, by what they mark.
        sampling: sampling parameters that the files or the catalogue recommend, by name.
        end_tokens: texts of the tokens that the files name as ends of a generation, by id.
        metadata: all metadata, as values that JSON has. A long array is a mapping with its `length`
            and its `first` elements.
    """

    path: str
    format: str
    file_bytes: int
    architecture: str | None
    name: str | None
    parameters: int
    context: int | None
    vocabulary: int | None
    experts: Experts | None
    tensors: tuple[TensorGroup, ...]
    memory: MemoryEstimate
    answers: Mapping[str, str]
    sampling: Mapping[str, object]
    end_tokens: Mapping[int, str | None]
    metadata: Mapping[str, object]

    def to_json(self) -> str:
        """The fields as an indented JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False, allow_nan=False)


def describe(
    path: Path,
    name: str | None = None,
    sampling: Mapping[str, object] = MappingProxyType({}),
    answers: Mapping[str, str] = MappingProxyType({}),
) -> ModelDescription:
    """Describe the model at `path`. `name` and each of `sampling` hold if its files have none.

    `answers` says in words how the model writes its answers.

    Raises:
        ModelSourceError, ModelFileError, UnsupportedModelError: the file cannot be read.
    """
    outline = read_outline(path)
    hyperparameters = outline.hyperparameters
    context = known_count(hyperparameters, "context")
    kv_per_token = kv_bytes_per_token(hyperparameters)
    groups = _groups(outline)
    return ModelDescription(
        path=str(path.absolute()),
        format=outline.format,
        file_bytes=outline.file_bytes,
        architecture=outline.architecture,
        name=outline.name or name,
        parameters=sum(group.elements for group in groups),
        context=context,
        vocabulary=known_count(hyperparameters, "vocabulary"),
        experts=_experts(outline),
        tensors=groups,
        memory=MemoryEstimate(
            weights=sum(group.bytes for group in groups),
            kv_per_token=kv_per_token,
            kv_context=_times(kv_per_token, context),
            kv_kind="latents" if known_count(hyperparameters, "latent_rank") else "keys and values",
            state=state_bytes(hyperparameters),
        ),
        answers={**answers},
        sampling={**sampling, **outline.sampling},
        end_tokens=outline.end_tokens,
        metadata=outline.metadata,
    )


def _groups(outline: Outline) -> tuple[TensorGroup, ...]:
    by_type: dict[TensorType, list[tuple[int, int]]] = defaultdict(list)
    for kind, shape, nbytes in outline.tensors:
        by_type[kind].append((prod(shape), nbytes))
    groups = (
        TensorGroup(
            type=kind.name,
            count=len(members),
            elements=sum(elements for elements, _ in members),
            bytes=sum(nbytes for _, nbytes in members),
            supported=kind.is_supported,
        )
        for kind, members in by_type.items()
    )
    return tuple(sorted(groups, key=lambda group: -group.bytes))


def _experts(outline: Outline) -> Experts | None:
    """Stacked tensors belong to experts: their first axis is the expert."""
    count = known_count(outline.hyperparameters, "experts")
    if count is None:
        return None
    used = known_count(outline.hyperparameters, "experts_used")
    if used is None:
        return Experts(count, None, None, None)
    elements = size = 0
    for _, shape, nbytes in outline.tensors:
        is_stacked = len(shape) == 3 and shape[0] == count
        part, whole = (used, count) if is_stacked else (1, 1)
        elements += prod(shape) * part // whole
        size += nbytes * part // whole
    return Experts(count, used, elements, size)


def _times(bytes: Mapping[str, int] | None, factor: int | None) -> Mapping[str, int] | None:
    if bytes is None or factor is None:
        return None
    return {kv_type: each * factor for kv_type, each in bytes.items()}
