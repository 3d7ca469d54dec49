"""Ling 1 and Ring 1: as Qwen2 MoE, with queries, keys and values in one matrix, without biases.

Shared experts have no gate. In some models, each column of the output matrix has length 1.
inclusionAI 2025 (https://github.com/inclusionAI/Ling, `models/modeling_bailing_moe.py`); llama.cpp,
`conversion/bailingmoe.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.errors import UnsupportedModelError
from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.made import MadeTensor
from heddle.weights.huggingface.names import SHARED_EXPERTS, FolderNames
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import Raw, Stored

_OUTPUT = "lm_head.weight"
_TINY = 1e-7
"""Joins the length of a column, as in Ling's own code."""
_ROWS = 4096
"""Rows of the output matrix that are float32 at a time."""


def _make(tensors: Mapping[str, Stored], config: Config) -> dict[str, MadeTensor]:
    """The output matrix, rounded to its dtype again, where `norm_head` says so.

    llama.cpp writes such a matrix into a GGUF file.
    """
    stored = tensors.get(_OUTPUT)
    if not config.get("norm_head") or stored is None:
        return {}
    if stored.dtype not in ("F32", "F16", "BF16"):
        raise UnsupportedModelError(
            f"tensor {_OUTPUT} of type {stored.dtype} is not supported: with norm_head, it must be"
            " floats. Use the original model, or a GGUF file of it",
            param=_OUTPUT,
        )
    kind, shape = TensorType[stored.dtype], stored.shape

    def make(raw: list[Raw]) -> Raw:
        rows = raw[0].reshape(shape[0], -1)
        parts = [rows[first : first + _ROWS] for first in range(0, len(rows), _ROWS)]

        def values(part: Raw) -> NDArray[Any]:
            return dequantize(part.ravel(), kind, (len(part), *shape[1:]))

        squares = sum(np.square(values(part), dtype=np.float64).sum(axis=0) for part in parts)
        lengths = np.sqrt(squares).astype(np.float32) + np.float32(_TINY)
        return np.concatenate([_rounded(values(part) / lengths, kind) for part in parts])

    return {"output.weight": MadeTensor(stored.dtype, shape, (_OUTPUT,), make)}


def _rounded(values: NDArray[Any], kind: TensorType) -> Raw:
    """The nearest numbers of a type, of two that are equally near the even one."""
    if kind is not TensorType.BF16:
        return values.astype("<f4" if kind is TensorType.F32 else "<f2").view(np.uint8).ravel()
    bits = values.view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    return (nearest >> 16).astype("<u2").view(np.uint8).ravel()


FAMILY = Family(
    build=llama.build,
    gguf={"bailingmoe": GGUFNames(values=INTERLEAVED)},
    hf={
        "bailing_moe": FolderNames(
            outside={"embedding": "model.word_embeddings"},
            layer=SHARED_EXPERTS
            | {
                "attention.qkv": "attention.query_key_value",
                "attention.output": "attention.dense",
            },
            make=_make,
        ),
    },
)
