"""Finds the quantised matrices of a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.weights.huggingface.packed.grouped import awq, gptq
from heddle.weights.huggingface.packed.matrix import refuse
from heddle.weights.huggingface.packed.scaled import compressed_tensors, fp8

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.packed.matrix import PackedMatrix, Stored

_METHODS = {"gptq": gptq, "awq": awq, "compressed-tensors": compressed_tensors, "fp8": fp8}


def packed_matrices(config: Config, tensors: Stored) -> dict[str, PackedMatrix]:
    """The quantised matrices of a folder, by label. All other tensors are stored as they are.

    Raises:
        UnsupportedModelError: the folder is quantised in a way that is not supported.
        ModelFileError: a part of a matrix is missing or has a wrong shape.
    """
    settings = config.get("quantization_config")
    if settings is None:
        return {}
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if method == "mxfp4" and config.get("model_type") == "gpt_oss":
        return {}  # only experts are quantised; gpt_oss.py reads them
    if not isinstance(settings, dict) or not isinstance(method, str) or method not in _METHODS:
        raise refuse("quant_method", method, f"supported: {', '.join(_METHODS)}")
    return {matrix.label: matrix for matrix in _METHODS[method](settings, tensors)}
