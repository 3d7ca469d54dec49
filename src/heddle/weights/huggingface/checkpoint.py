"""A Hugging Face folder as a checkpoint: its keys and tensors under canonical names."""

from __future__ import annotations

import logging
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np

from heddle.closing import Closing
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.weights.checkpoint import FilePlace, TensorInfo
from heddle.weights.files import FileStamp
from heddle.weights.fused import take_apart
from heddle.weights.heads import is_of_heads, part_of_heads
from heddle.weights.huggingface import names
from heddle.weights.huggingface.config import hyperparameters_of, text_part
from heddle.weights.huggingface.experts import stacked_label, stacks_of_pairs, stacks_of_singles
from heddle.weights.huggingface.generation import read_recommended
from heddle.weights.huggingface.json_files import read_json, read_limited, read_optional_json
from heddle.weights.huggingface.sentence_modules import read_sentence_modules
from heddle.weights.huggingface.stored import StoredTensors
from heddle.weights.huggingface.tokenizer import read_tokenizer, separator_of
from heddle.weights.hyperparameters import Bounds
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import CheckArchitecture, TokenizerSpec
    from heddle.weights.generation import Recommended
    from heddle.weights.huggingface.experts import Slice, Stack
    from heddle.weights.huggingface.stored import FolderTensor

    Floats = NDArray[np.float32]

_log = logging.getLogger(__name__)

CONFIG = "config.json"


class HuggingFaceCheckpoint(Closing):
    """See :class:`heddle.weights.checkpoint.Checkpoint`.

    Attributes:
        stored: all tensors of the folder, by their own names.
    """

    format = "hf"

    def __init__(
        self, folder: Path, check: CheckArchitecture = lambda format, architecture: None
    ) -> None:
        """See :meth:`open`."""
        self.path = folder
        self.config = check_config(folder, check)  # first: nothing else may make sense
        self.config |= separator_of(folder, self.config)
        self._config_stamp = {folder / CONFIG: FileStamp.of((folder / CONFIG).stat())}
        architecture = self.architecture = str(self.config["model_type"])
        self._modules = read_sentence_modules(folder)
        self.prompts: Mapping[str, str] = dict(self._modules.prompts)
        self.default_prompt = self.prompts.get(self._modules.default_prompt or "", "")
        self.chat_template = chat_template_of(folder)
        dense = [place for place, *_ in self._modules.dense]
        self.stored = StoredTensors(folder, self.config, dense)
        self.check_unchanged = self.stored.check_unchanged
        try:
            shapes = (tensor.shape for tensor in self.stored.tensors.values())
            bounds = Bounds.of(shapes)
            self.hyperparameters = hyperparameters_of(self.config, self._modules, bounds)
            base = names.base_of(architecture, self.stored.tensors)
            self._names = names.tensor_names(
                architecture,
                base=base,
                layers=self.hyperparameters.get("layers"),
                dense=dense,
                has_experts=bool(self.hyperparameters.get("experts")),
            )
            make = names.names_of(architecture).make
            self._made = make(self.stored.tensors, self.config) if make else {}
            self._stacks = {} if any(".experts." in one for one in self._made) else self._stacked()
            self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
                take_apart(self._tensors(), self.hyperparameters)
            )
            self._log_others(base)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls, path: str | Path, check: CheckArchitecture = lambda format, architecture: None
    ) -> Self:
        """Open the folder's files and read their headers. `check` may refuse the architecture.

        Raises:
            ModelSourceError: a file is missing or cannot be read.
            ModelFileError: a file is damaged, or files contradict one another.
            UnsupportedModelError: the weights are stored in a form that is not supported.
        """
        return cls(Path(path), check)

    def label(self, name: str) -> str:
        return self._names.stored(name)

    def tokenizer(self) -> TokenizerSpec:
        return read_tokenizer(self.path, self.config)

    def recommended(self) -> Recommended:
        return read_recommended(self.path)

    @property
    def stamps(self) -> Mapping[Path, FileStamp]:
        return {**self.stored.stamps, **self._config_stamp}

    def read(self, name: str, start: int = 0, size: int | None = None) -> NDArray[np.uint8]:
        tensor = self.tensors.get(name)
        if tensor is None:
            label = self.label(name)
            raise ModelFileError(f"{self.path}: tensor {label} is missing", field=label)
        wanted = range(tensor.nbytes)[start : None if size is None else start + size]
        if name in self._stacks:
            return self._read_stack(self._stacks[name], wanted)
        if self._is_computed(name):
            return self._computed(tensor)[wanted.start : wanted.stop]
        return self.stored.read(tensor.label, tensor.start + wanted.start, len(wanted))

    def reads_parts(self, name: str) -> bool:
        if name in self._stacks:
            return self.stored.reads_parts(self._stacks[name].slices[0].label)
        return not self._is_computed(name) and self.stored.reads_parts(self.tensors[name].label)

    def _is_computed(self, name: str) -> bool:
        tensor = self.tensors[name]
        if name in self._made or is_of_heads(tensor):
            return True
        return self._derivation(name, self.stored[tensor.label]) is not None

    def _read_stack(self, stack: Stack, wanted: range) -> NDArray[np.uint8]:
        """Bytes of a stack, from those of the slices that have some."""
        found, at = [], 0
        for part in stack.slices:
            own = range(at, at + part.size)
            at += part.size
            begin, end = max(own.start, wanted.start), min(own.stop, wanted.stop)
            if begin < end:
                skipped = begin - own.start
                found.append(self.stored.read(part.label, part.start + skipped, end - begin))
        return np.concatenate(found) if found else np.empty(0, np.uint8)

    def _computed(self, tensor: TensorInfo) -> NDArray[np.uint8]:
        """The bytes of a tensor that is computed from stored ones."""
        name = tensor.name
        if name in self._made:
            made = self._made[name]
            return made.make([self.stored.read(label) for label in made.sources])
        stored = self.stored[tensor.label]
        if is_of_heads(tensor):
            return part_of_heads(tensor, stored.type, self.stored.read(tensor.label))
        derive = self._derivation(name, stored)
        assert derive is not None, "other tensors are stored as they are"
        values = dequantize(self.stored.read(tensor.label), stored.type, stored.shape)
        return derive(values).reshape(-1).view(np.uint8)

    def close(self) -> None:
        """Close the files. Idempotent."""
        self.stored.close()

    # --- opening ---------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, TensorInfo]:
        """Tensors with a canonical name. A text model does not need the others."""
        found = {}
        tied = self.config.get("tie_word_embeddings") is True
        for label, stored in self.stored.tensors.items():
            name = self._names.canonical(label)
            if name is not None and not (tied and name == "output.weight"):
                found[name] = self._info(name, stored)
        found |= {name: self._info_of_stack(name, stack) for name, stack in self._stacks.items()}
        for name, made in self._made.items():
            kind = TensorType[made.dtype]
            found[name] = TensorInfo(name, made.shape, kind, made.nbytes, made.label, None)
        if self.config.get("tie_word_embeddings") is False and "output.weight" not in found:
            label = self.label("output.weight")
            raise ModelFileError(
                f"{self.path}: tensor {label} is missing, and tie_word_embeddings is false",
                field=label,
            )
        return found

    def _log_others(self, base: str) -> None:
        """Say which parts of the model beside its layers are not used, such as eyes."""
        layers = tuple(f"{base}{one}" for one in names.names_of(self.architecture).layers)
        used = {label for made in self._made.values() for label in made.sources}
        others = [label for label in self.stored if not label.startswith(layers)]
        others = [one for one in others if self._names.canonical(one) is None and one not in used]
        if others:
            parts = sorted({label.removeprefix("model.").split(".")[0] for label in others})
            _log.info(
                "%s: %d tensors beside the text model are not used: %s",
                *(self.path, len(others), ", ".join(parts)),
            )

    def _stacked(self) -> dict[str, Stack]:
        """Tensors of experts that the files store in slices, by canonical name."""
        stored, canonical = self.stored.tensors, self._names.canonical
        # Others, such as scales of activations, need not be there for every expert.
        needed = {label: one for label, one in stored.items() if canonical(stacked_label(label))}
        named = {canonical(label): stack for label, stack in stacks_of_singles(needed).items()}
        found = {name: stack for name, stack in named.items() if name is not None}
        return found | stacks_of_pairs(stored, self._names)

    def _info_of_stack(self, name: str, stack: Stack) -> TensorInfo:
        first = self.stored[stack.slices[0].label]
        places = [self._place(one) for one in stack.slices] if first.place else []
        size = sum(part.size for part in stack.slices)
        return TensorInfo(
            name, stack.shape, first.type, size, stack.label, None, tuple(filter(None, places))
        )

    def _place(self, part: Slice) -> FilePlace | None:
        whole = self.stored[part.label].place
        return whole and FilePlace(whole.descriptor, whole.offset + part.start)

    def _info(self, name: str, stored: FolderTensor) -> TensorInfo:
        kind, shape, label = stored.type, stored.shape, stored.label
        if self._derivation(name, stored) is not None:
            count = prod(shape)
            return TensorInfo(name, (count,), TensorType.F32, 4 * count, label, None)
        if name.endswith("conv.weight") and len(shape) == 3:  # (channels, 1, taps)
            shape = (shape[0] * shape[1], shape[2])
        return TensorInfo(name, shape, kind, stored.nbytes, label, stored.place)

    def _derivation(self, name: str, stored: FolderTensor) -> Callable[[Floats], Floats] | None:
        """How canonical values are computed from the stored ones; None if they are the same."""
        if name.endswith(".decay_rates.weight"):  # Kimi's has axes of one element
            return lambda logs: -np.exp(logs)
        if len(stored.shape) != 1:
            return None
        # The norm of a recurrence's result is stored whole.
        is_norm = name.endswith("norm.weight") and not name.endswith(".mixer.norm.weight")
        if is_norm and names.names_of(self.architecture).norms_without_one:
            return lambda weights: weights + np.float32(1)
        return None


def check_config(folder: Path, check: CheckArchitecture, name: str = "") -> dict[str, object]:
    """Read config.json and let `check` judge its architecture. Returns the text model's part.

    `name` is the model in errors; empty: the folder's name.

    Raises:
        ModelSourceError: the file is missing or cannot be read.
        ModelFileError: the file is damaged, or names no architecture.
        UnsupportedModelError: `check` refuses the architecture.
    """
    whole = read_json(folder / CONFIG)
    if "quantization_config" not in whole:  # older folders of TensorRT Model Optimizer
        quantised = read_optional_json(folder / "hf_quant_config.json").get("quantization")
        if isinstance(quantised, dict):
            whole["quantization_config"] = {"quant_method": "modelopt"} | quantised
    config = text_part(whole)
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise ModelFileError(
            f"{folder / CONFIG}: model_type must be a string, got {architecture!r}",
            field="model_type",
        )
    try:
        check(HuggingFaceCheckpoint.format, architecture)
    except UnsupportedModelError as error:
        named = whole.get("architectures")
        classes = f" ({', '.join(map(str, named))})" if isinstance(named, list) and named else ""
        raise UnsupportedModelError(
            f"{name or folder.name}{classes}: {error.message}", param=error.param
        ) from None
    return config


def chat_template_of(folder: Path) -> str | None:
    """The template of chat_template.jinja, chat_template.json or tokenizer_config.json; else None.

    Raises:
        ModelSourceError: a file cannot be read.
        ModelFileError: a file is damaged.
    """
    path = folder / "chat_template.jinja"
    try:
        if path.is_file():
            return read_limited(path).decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"cannot read {path}: {error}", field=path.name) from error
    # Folders of models that see may have the template of their processor in a file of its own.
    of_processor = read_optional_json(folder / "chat_template.json").get("chat_template")
    own = read_optional_json(folder / "tokenizer_config.json").get("chat_template")
    template = own if of_processor is None else of_processor
    if isinstance(template, list):  # several, by name
        named = [one for one in template if isinstance(one, dict)]
        found = [one.get("template") for one in named if one.get("name") == "default"]
        template = found[0] if found else None
    return template if isinstance(template, str) else None
