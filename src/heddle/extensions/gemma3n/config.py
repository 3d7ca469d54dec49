"""Numbers and tensors that only Gemma 3n has, from its config.json and its folders."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.weights.huggingface.made import MadeTensor
from heddle.weights.huggingface.safetensors import DTYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import Stored

_SPARSITY = "activation_sparsity_pattern"
_STREAM = re.compile(
    r"(?:.+\.)?altup_(?P<part>unembed_projections|projections)\.(?P<at>\d{1,4})\.weight"
)
_NAMES = {"projections": "streams.spread.weight", "unembed_projections": "streams.merge.weight"}


def read_config(config: Config) -> dict[str, object]:
    """The cuts of gates by layer.

    Raises:
        ModelFileError: a share of gates that are cut is no number from 0 to 1.
        UnsupportedModelError: config.json turns a part of the layers off.
    """
    if config.get("altup_correct_scale", True) is not True:
        raise UnsupportedModelError(
            "config.json: altup_correct_scale false is not supported; the published models have"
            " true",
            param="altup_correct_scale",
        )
    shares = config.get(_SPARSITY)
    if shares is None:
        return {}
    if not isinstance(shares, list) or not all(map(_is_share, shares)):
        raise ModelFileError(
            f"{_SPARSITY} must be a list of numbers from 0 up to, but not including, 1, got"
            f" {shares!r}",
            field=_SPARSITY,
        )
    return {"gate_cuts": [cut_of(share) for share in shares]}


def cut_of(share: float) -> float:
    """Standard deviations above the mean below which a share of normal numbers lies."""
    return NormalDist().inv_cdf(share) if share else -math.inf


def _is_share(one: object) -> bool:
    return type(one) in (int, float) and 0 <= one < 1  # type: ignore[operator]


def stacked_streams(tensors: Mapping[str, Stored], _: Config) -> dict[str, MadeTensor]:
    """The matrices of the streams, which folders have one by one, as GGUF files have them: stacked.

    Raises:
        ModelFileError: one of them is missing, or differs from the others in shape or type.
        UnsupportedModelError: they are quantised.
    """
    labels: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for label in tensors:
        match = _STREAM.fullmatch(label)
        if match is not None:
            labels[_NAMES[match["part"]]][int(match["at"])] = label
    return {name: _stack([of[at] for at in sorted(of)], of, tensors) for name, of in labels.items()}


def _stack(
    labels: list[str], numbers: Mapping[int, str], tensors: Mapping[str, Stored]
) -> MadeTensor:
    first = tensors[labels[0]]
    if first.dtype not in DTYPE_BITS:
        raise UnsupportedModelError(
            f"tensor {labels[0]} of type {first.dtype} is not supported: the matrices of streams"
            " must be floats. Use the original model, or a GGUF file of it",
            param=labels[0],
        )
    kinds = {(tensors[one].dtype, tensors[one].shape) for one in labels}
    if len(kinds) > 1 or max(numbers) >= len(numbers):
        raise ModelFileError(
            f"tensors {labels[0]} to {labels[-1]} must be numbered from 0 and have one shape and"
            " type",
            field=labels[0],
        )
    return MadeTensor(first.dtype, (len(labels), *first.shape), tuple(labels), np.concatenate)
