"""A Hugging Face folder as a checkpoint: its keys and tensors under canonical names."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np

from heddle.closing import Closing
from heddle.errors import ModelFileError, ModelSourceError, UnsupportedModelError
from heddle.weights.checkpoint import FilePlace, TensorInfo
from heddle.weights.files import FileStamp
from heddle.weights.fused import bytes_of, take_apart
from heddle.weights.huggingface import names
from heddle.weights.huggingface.config import hyperparameters_of
from heddle.weights.huggingface.experts import stacks_of_pairs, stacks_of_singles
from heddle.weights.huggingface.generation import read_recommended
from heddle.weights.huggingface.json_files import read_json, read_optional_json
from heddle.weights.huggingface.safetensors import SafetensorsFile
from heddle.weights.huggingface.tokenizer import read_tokenizer
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import TokenizerSpec
    from heddle.weights.generation import Recommended
    from heddle.weights.huggingface.experts import Slice, Stack
    from heddle.weights.huggingface.safetensors import StoredTensor

CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_ONE_FILE = "model.safetensors"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}


class HuggingFaceCheckpoint(Closing):
    """See :class:`heddle.weights.checkpoint.Checkpoint`."""

    format = "hf"

    def __init__(self, folder: Path) -> None:
        """See :meth:`open`."""
        self.path = folder
        self.config = read_json(folder / CONFIG)
        self._config_stamp = {folder / CONFIG: FileStamp.of((folder / CONFIG).stat())}
        architecture = self.config.get("model_type")
        if not isinstance(architecture, str):
            raise ModelFileError(
                f"{folder / CONFIG}: model_type must be a string, got {architecture!r}",
                field="model_type",
            )
        self.architecture = architecture
        self._refuse_quantised()
        self.hyperparameters = hyperparameters_of(self.config)
        self._names = names.tensor_names(architecture)
        self.chat_template = chat_template_of(folder)
        self._files: list[SafetensorsFile] = []
        self._file_of: dict[str, SafetensorsFile] = {}
        try:
            self._open_files()
            self._stacks = self._stacked()
            self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
                take_apart(self._tensors(), self.hyperparameters)
            )
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the folder's files and read their headers.

        Raises:
            ModelSourceError: a file is missing or cannot be read.
            ModelFileError: a file is damaged, or files contradict one another.
            UnsupportedModelError: the weights are stored in a form that is not supported.
        """
        return cls(Path(path))

    def label(self, name: str) -> str:
        return self._names.stored(name)

    def tokenizer(self) -> TokenizerSpec:
        return read_tokenizer(self.path, self.config)

    def recommended(self) -> Recommended:
        return read_recommended(self.path)

    @property
    def stamps(self) -> Mapping[Path, FileStamp]:
        return {file.path: file.stamp for file in self._files} | self._config_stamp

    def read(self, name: str) -> NDArray[np.uint8]:
        tensor = self.tensors.get(name)
        if tensor is None:
            label = self.label(name)
            raise ModelFileError(f"{self.path}: tensor {label} is missing", field=label)
        if name in self._stacks:
            return np.concatenate([self._read_slice(one) for one in self._stacks[name].slices])
        file = self._file_of[tensor.label]
        stored = file.tensors[tensor.label]
        raw = np.frombuffer(file.read(stored.offset, stored.nbytes, tensor.label), np.uint8)
        if tensor.place is None:
            values = dequantize(raw, _TYPES[stored.dtype], stored.shape)
            return (values + np.float32(1)).view(np.uint8)
        return raw[bytes_of(tensor, stored.offset)]

    def _read_slice(self, part: Slice) -> NDArray[np.uint8]:
        file = self._file_of[part.label]
        start = file.tensors[part.label].offset + part.start
        return np.frombuffer(file.read(start, part.size, part.label), np.uint8)

    def check_unchanged(self) -> None:
        for file in self._files:
            file.check_unchanged()

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files:
            file.close()

    # --- opening ---------------------------------------------------------------------------------

    def _refuse_quantised(self) -> None:
        quantisation = self.config.get("quantization_config")
        if quantisation is not None:
            method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
            raise UnsupportedModelError(
                f"{self.path / CONFIG}: quantization_config with quant_method {method!r} is not"
                " supported; supported: weights in F32, F16 or BF16. Use the original model, or a"
                " GGUF file of it",
                param="quantization_config",
            )

    def _open_files(self) -> None:
        for name in _shards(self.path):
            file = SafetensorsFile.open(self.path / name)
            self._files.append(file)
            for tensor in file.tensors:
                if tensor in self._file_of:
                    raise ModelFileError(
                        f"{self.path}: {file.path.name} and {self._file_of[tensor].path.name} both"
                        f" have a tensor {tensor}",
                        field=tensor,
                    )
                self._file_of[tensor] = file

    def _tensors(self) -> dict[str, TensorInfo]:
        """Tensors with a canonical name. A text model does not need the others."""
        found = {}
        tied = self.config.get("tie_word_embeddings") is True
        for label, file in self._file_of.items():
            name = self._names.canonical(label)
            if name is not None and not (tied and name == "output.weight"):
                found[name] = self._info(name, label, file)
        found |= {name: self._info_of_stack(name, stack) for name, stack in self._stacks.items()}
        if self.config.get("tie_word_embeddings") is False and "output.weight" not in found:
            label = self.label("output.weight")
            raise ModelFileError(
                f"{self.path}: tensor {label} is missing, and tie_word_embeddings is false",
                field=label,
            )
        return found

    def _stacked(self) -> dict[str, Stack]:
        """Tensors of experts that the files store in slices, by canonical name."""
        stored = {label: file.tensors[label] for label, file in self._file_of.items()}
        named = {
            self._names.canonical(label): stack
            for label, stack in stacks_of_singles(stored).items()
        }
        found = {name: stack for name, stack in named.items() if name is not None}
        return found | stacks_of_pairs(stored)

    def _info_of_stack(self, name: str, stack: Stack) -> TensorInfo:
        kind = _kind(stack.label, stack.dtype)
        places = []
        for part in stack.slices:
            file = self._file_of[part.label]
            start = file.tensors[part.label].offset + part.start
            places.append(FilePlace(file.descriptor, start))
        size = sum(part.size for part in stack.slices)
        return TensorInfo(name, stack.shape, kind, size, stack.label, None, tuple(places))

    def _info(self, name: str, label: str, file: SafetensorsFile) -> TensorInfo:
        stored = file.tensors[label]
        kind = _kind(label, stored.dtype)
        if self._lacks_one(name, stored):
            nbytes = 4 * stored.shape[0]
            return TensorInfo(name, stored.shape, TensorType.F32, nbytes, label, None)
        place = FilePlace(file.descriptor, stored.offset)
        return TensorInfo(name, stored.shape, kind, stored.nbytes, label, place)

    def _lacks_one(self, name: str, stored: StoredTensor) -> bool:
        """Whether the tensor has norm weights that are stored without their offset of 1."""
        is_norm = name.endswith("norm.weight") and len(stored.shape) == 1
        return is_norm and self.architecture in names.NORMS_WITHOUT_ONE


def _kind(label: str, dtype: str) -> TensorType:
    kind = _TYPES.get(dtype)
    if kind is None:
        raise UnsupportedModelError(
            f"tensor {label} of dtype {dtype} is not supported; supported: {', '.join(_TYPES)}",
            param=label,
        )
    return kind


def _shards(folder: Path) -> list[str]:
    """Names of the files with tensors."""
    if (folder / _INDEX).is_file():
        places = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise ModelFileError(f"{folder / _INDEX}: weight_map is missing", field="weight_map")
        shards = sorted({str(name) for name in places.values()})
        for name in shards:
            if Path(name).name != name:
                raise ModelFileError(
                    f"{folder / _INDEX}: weight_map names {name!r}, which is not a plain file name",
                    field="weight_map",
                )
            if not (folder / name).is_file():
                raise ModelSourceError(f"{folder}: the shard {name} is missing; fetch it")
        return shards
    if (folder / _ONE_FILE).is_file():
        return [_ONE_FILE]
    pickled = next((file.name for file in folder.iterdir() if file.suffix in _PICKLED), None)
    if pickled is not None:
        raise UnsupportedModelError(
            f"{folder} has its weights in {pickled}, a pickle: opening a pickle can run any code."
            f" Save the model with `save_pretrained(folder)`, which writes {_ONE_FILE}",
            param="model",
        )
    raise ModelSourceError(f"{folder} has no {_ONE_FILE} and no {_INDEX}; fetch the whole folder")


def chat_template_of(folder: Path) -> str | None:
    """The template of chat_template.jinja, else of tokenizer_config.json; None without one.

    Raises:
        ModelFileError: a file is damaged.
    """
    path = folder / "chat_template.jinja"
    try:
        if path.is_file():
            return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"cannot read {path}: {error}", field=path.name) from error
    template = read_optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        named = [one for one in template if isinstance(one, dict)]
        found = [one.get("template") for one in named if one.get("name") == "default"]
        template = found[0] if found else None
    return template if isinstance(template, str) else None
