"""Matrices that a folder stores quantised. Extensions read them: the core knows no form of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from heddle.doors import extensions, refer
from heddle.errors import UnsupportedModelError
from heddle.weights.huggingface.names import names_of
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.safetensors import StoredTensor

    Stored = Mapping[str, StoredTensor]
    """The tensors of a folder's files by their names."""

_log = logging.getLogger(__name__)


class Read(Protocol):
    """Reads a stored tensor: BF16 as float32, F8 as uint8, other types as they are."""

    def __call__(self, label: str, rows: slice | None = None, /) -> NDArray[Any]:
        """All rows, or some."""
        ...


class QuantisedMatrix(Protocol):
    """A matrix that a folder stores quantised. It takes the place of its parts."""

    @property
    def label(self) -> str:
        """The name of its tensor if it were not quantised."""
        ...

    @property
    def type(self) -> TensorType:
        """The type as which it is read. It holds all values exactly."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        ...

    @property
    def nbytes(self) -> int:
        """Size in bytes as `type`."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """The stored tensors that it is made from."""
        ...

    @property
    def by_rows(self) -> bool:
        """Whether some rows take less work to read than all."""
        ...

    def read(self, read: Read, wanted: range, /) -> NDArray[np.uint8]:
        """Some bytes of the matrix, as `type`. `wanted` are their indices.

        Raises:
            UnsupportedModelError: `type` does not hold a value or a scale exactly.
        """
        ...


class Quantisation(Protocol):
    """Finds the matrices of a folder that one method has quantised."""

    def __call__(
        self, settings: Config, tensors: Stored, read: Read, /
    ) -> Sequence[QuantisedMatrix]:
        """The quantised matrices. All other tensors are stored as they are.

        Args:
            settings: `quantization_config` of config.json; of MLX, `quantization`.
            tensors: all tensors of the folder; none if only the settings are to be judged.
            read: reads one of them. It may decide how a matrix is read.

        Raises:
            UnsupportedModelError: a setting is not supported.
            ModelFileError: a part of a matrix is missing or has a wrong shape.
        """
        ...


def quantised_matrices(config: Config, tensors: Stored, read: Read) -> dict[str, QuantisedMatrix]:
    """The quantised matrices of a folder, by label. All other tensors are stored as they are.

    Raises:
        UnsupportedModelError: no extension reads the folder's method, or a setting of it.
        ModelFileError: a part of a matrix is missing or has a wrong shape.
    """
    of_mlx = config.get("quantization")
    settings = of_mlx if isinstance(of_mlx, dict) else config.get("quantization_config")
    if settings is None:
        return {}
    method = "mlx" if settings is of_mlx else None
    method = settings.get("quant_method", method) if isinstance(settings, dict) else None
    if method == "mxfp4" and names_of(str(config.get("model_type"))).make:
        return {}  # only experts are quantised; the family makes their tensors
    known = {
        name: one for each in extensions().values() for name, one in each.quantisations.items()
    }
    if not isinstance(settings, dict) or not isinstance(method, str) or method not in known:
        raise refuse("quant_method", method, f"supported: {', '.join(known) or 'none'}")
    find: Quantisation = refer(known[method])
    found = {matrix.label: matrix for matrix in find(settings, tensors, read)}
    grown = [label for label, matrix in found.items() if matrix.type is TensorType.F32]
    if grown:
        _log.warning(
            "%d of %d quantised matrices are held as F32, four bytes a weight: no other type has"
            " their values exactly. The first is %s",
            *(len(grown), len(found), grown[0]),
        )
    return found


def check_quantisation(config: Config) -> None:
    """Judge the settings of quantised weights, without the weights.

    Raises:
        UnsupportedModelError: no extension reads the folder's method, or a setting of it.
    """

    def read(label: str, rows: slice | None = None) -> NDArray[Any]:
        raise AssertionError(f"there is no tensor {label}")

    quantised_matrices(config, {}, read)


def refuse(key: str, value: object, instead: str) -> UnsupportedModelError:
    """The error for a value of `quantization_config` that is not supported."""
    return UnsupportedModelError(
        f"config.json: quantization_config.{key} {value!r} is not supported; {instead}. Or use"
        " the original model, or a GGUF file of it",
        param="quantization_config",
    )
