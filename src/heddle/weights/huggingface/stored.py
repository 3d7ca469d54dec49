"""The tensors of a folder under their own names, from all of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.closing import Closing
from heddle.errors import ModelFileError, ModelSourceError, UnsupportedModelError
from heddle.weights.checkpoint import FilePlace
from heddle.weights.huggingface.json_files import read_json
from heddle.weights.huggingface.quantised import quantised_matrices
from heddle.weights.huggingface.safetensors import SafetensorsFile
from heddle.weights.pickles import check_no_pickle
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from heddle.weights.files import FileStamp
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.quantised import QuantisedMatrix

_ONE_FILE = "model.safetensors"
_TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}
_NUMPY = {
    **{"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "i1"},
    **{"U32": "<u4", "U8": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1"},
}


@dataclass(frozen=True, slots=True)
class FolderTensor:
    """A tensor of a folder.

    Attributes:
        label: its name in the files.
        dtype: its type in the files; of a quantised matrix, the name of the type it is read as.
        shape: row-major.
        nbytes: size in bytes.
        place: the place of its bytes; None for a quantised matrix.
    """

    label: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    place: FilePlace | None

    @property
    def type(self) -> TensorType:
        """Its storage type.

        Raises:
            UnsupportedModelError: weights of its dtype are not supported.
        """
        if self.place is None:
            return TensorType[self.dtype]
        kind = _TYPES.get(self.dtype)
        if kind is None:
            raise UnsupportedModelError(
                f"tensor {self.label} of dtype {self.dtype} is not supported; supported:"
                f" {', '.join(_TYPES)}",
                param=self.label,
            )
        return kind


class StoredTensors(Closing):
    """The tensors of a folder by label. Quantised matrices take the place of their parts."""

    def __init__(self, folder: Path, config: Config, more: Sequence[str] = ()) -> None:
        """Open the files and read their headers.

        `more` are folders inside `folder`, whose tensors have labels with the folder before them.

        Raises:
            ModelSourceError: a file is missing or cannot be read.
            ModelFileError: a file is damaged, or files contradict one another.
            UnsupportedModelError: the weights are stored in a form that is not supported.
        """
        self._folder = folder
        self._files: list[SafetensorsFile] = []
        self._file_of: dict[str, SafetensorsFile] = {}
        try:
            self._open_files(more)
            stored = {label: file.tensors[label] for label, file in self._file_of.items()}
            self._quantised = quantised_matrices(config, stored, self._array)
        except BaseException:
            self.close()
            raise
        parts = {part for matrix in self._quantised.values() for part in matrix.parts}
        self.tensors: Mapping[str, FolderTensor] = {
            label: self._plain(label) for label in stored if label not in parts
        } | {label: _of_quantised(matrix) for label, matrix in self._quantised.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __contains__(self, label: str) -> bool:
        return label in self.tensors

    def __getitem__(self, label: str) -> FolderTensor:
        return self.tensors[label]

    @property
    def stamps(self) -> Mapping[Path, FileStamp]:
        """Stamps of the files, from when they were opened."""
        return {file.path: file.stamp for file in self._files}

    def read(self, label: str, start: int = 0, size: int | None = None) -> NDArray[np.uint8]:
        """`size` bytes of a tensor from byte `start` on; None: all that follow."""
        quantised = self._quantised.get(label)
        end = None if size is None else start + size
        some = range(self.tensors[label].nbytes)[start:end]
        if quantised is not None:
            return quantised.read(self._array, some)
        stored = self._file_of[label].tensors[label]
        raw = self._file_of[label].read(stored.offset + start, len(some), label)
        return np.frombuffer(raw, np.uint8)

    def reads_parts(self, label: str) -> bool:
        """Whether a part of a tensor takes less work to read than the whole."""
        quantised = self._quantised.get(label)
        return quantised is None or quantised.by_rows

    def check_unchanged(self) -> None:
        """Raise ModelFileError if somebody has written to a file."""
        for file in self._files:
            file.check_unchanged()

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files:
            file.close()

    def _open_files(self, more: Sequence[str]) -> None:
        for name in [*shards(self._folder, _ONE_FILE), *(f"{place}/{_ONE_FILE}" for place in more)]:
            file = SafetensorsFile.open(self._folder / name)
            self._files.append(file)
            if "/" in name:
                file.put_under(name.partition("/")[0])
            for tensor in file.tensors:
                if tensor in self._file_of:
                    raise ModelFileError(
                        f"{self._folder}: {file.path.name} and {self._file_of[tensor].path.name}"
                        f" both have a tensor {tensor}",
                        field=tensor,
                    )
                self._file_of[tensor] = file

    def _plain(self, label: str) -> FolderTensor:
        file = self._file_of[label]
        stored = file.tensors[label]
        place = FilePlace(file.descriptor, stored.offset)
        return FolderTensor(label, stored.dtype, stored.shape, stored.nbytes, place)

    def _array(self, label: str, rows: slice | None = None) -> NDArray[Any]:
        """A stored tensor, or some of its rows, as an array: BF16 as float32, F8 as uint8, other
        types as they are."""
        file = self._file_of[label]
        stored = file.tensors[label]
        offset, size, shape = stored.offset, stored.nbytes, stored.shape
        if rows is not None:
            of_row, count = size // shape[0], rows.stop - rows.start
            offset, size, shape = offset + rows.start * of_row, count * of_row, (count, *shape[1:])
        raw = np.frombuffer(file.read(offset, size, label), np.uint8)
        if stored.dtype == "BF16":
            return dequantize(raw, TensorType.BF16, shape)
        kind = _NUMPY.get(stored.dtype)
        if kind is None:
            raise UnsupportedModelError(
                f"tensor {label} of dtype {stored.dtype} is not supported in quantised weights",
                param=label,
            )
        return raw.view(kind).reshape(shape)


def _of_quantised(matrix: QuantisedMatrix) -> FolderTensor:
    return FolderTensor(matrix.label, matrix.type.name, matrix.shape, matrix.nbytes, None)


def shards(folder: Path, one_file: str) -> list[str]:
    """Names of the files with tensors: those that the index of `one_file` names, or this file.

    Raises:
        ModelSourceError: a file is missing.
        ModelFileError: the index is damaged.
        UnsupportedModelError: the weights are pickles.
    """
    index = f"{one_file}.index.json"
    if (folder / index).is_file():
        places = read_json(folder / index).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise ModelFileError(f"{folder / index}: weight_map is missing", field="weight_map")
        names = sorted({str(name) for name in places.values()})
        for name in names:
            if Path(name).name != name:
                raise ModelFileError(
                    f"{folder / index}: weight_map names {name!r}, which is not a plain file name",
                    field="weight_map",
                )
            if not (folder / name).is_file():
                raise ModelSourceError(f"{folder}: the shard {name} is missing; fetch it")
        return names
    if (folder / one_file).is_file():
        return [one_file]
    check_no_pickle(str(folder), (file.name for file in folder.iterdir()))
    raise ModelSourceError(f"{folder} has no {one_file} and no {index}; fetch the whole folder")
