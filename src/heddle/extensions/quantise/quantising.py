"""Writes a model as a GGUF file with quantised matrices: `heddle quantize`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import OutOfMemoryError
from heddle.extensions.quantise.export import (
    exported_key,
    exported_metadata,
    exported_name,
    is_exported,
    needs_output_matrix,
)
from heddle.extensions.quantise.export_rows import (
    exported_content,
    exported_shape,
    exported_tensors,
)
from heddle.extensions.quantise.quantiser import Quantiser
from heddle.extensions.quantise.tokenizer_metadata import pre_tokenizer_name
from heddle.extensions.quantise.writer import NewTensor, write_gguf
from heddle.models.ops import RopeSpec
from heddle.models.positions import llama3, longrope_scale
from heddle.process_memory import available_bytes
from heddle.weights.formats import open_checkpoint
from heddle.weights.fused import FUSED_PARTS, is_of_experts
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.progress import Silent
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint, TensorInfo
    from heddle.weights.hyperparameters import Hyperparameters
    from heddle.weights.mix import Mix
    from heddle.weights.progress import Progress

_FILE_TYPES = {
    TensorType.Q4_0: 2,
    TensorType.Q8_0: 7,
    TensorType.Q4_K: 14,
    TensorType.Q5_K: 16,
    TensorType.Q6_K: 18,
    TensorType.MXFP4: 38,
}
"""llama.cpp's numbers of mixes (`llama_ftype`), for `general.file_type`."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written.

    Attributes:
        path: its place.
        nbytes: bytes of its tensors.
        kept: matrices that were quantised before and stay as they are, as text; may be empty.
    """

    path: Path
    nbytes: int
    kept: str


def quantise_file(
    source: Path,
    target: Path,
    mix: Mix,
    importance: Mapping[str, NDArray[np.float32]] | None = None,
    progress: Progress | None = None,
    threads: int = 0,
) -> Written:
    """Write the model at `source` to the GGUF file `target`, its matrices as `mix` says.

    `importance` has the mean square of each input column of a matrix, by the matrix's name in GGUF.

    Raises:
        ModelSourceError: a file cannot be read or written, or the disk has too little space.
        ModelFileError: a file of the model is damaged.
        UnsupportedModelError: GGUF cannot express the model.
        OutOfMemoryError: the largest tensor needs more memory than is free.
    """
    with open_checkpoint(source) as checkpoint:
        return write_file(checkpoint, target, mix, importance, progress, threads)


def write_file(
    checkpoint: Checkpoint,
    target: Path,
    mix: Mix,
    importance: Mapping[str, NDArray[np.float32]] | None = None,
    progress: Progress | None = None,
    threads: int = 0,
) -> Written:
    """Write a model to the GGUF file `target`; see :func:`quantise_file`."""
    progress = progress or Silent()
    new = _NewFile(checkpoint, mix, importance or {}, Quantiser(threads))
    metadata, tensors = new.metadata(), new.tensors()
    _check_memory(new.most_memory)
    total = sum(tensor.nbytes for tensor in tensors)
    doing = "writing" if mix.target is None else "quantising"
    progress.start(f"{doing} {checkpoint.path.name}", total)
    try:
        write_gguf(target, metadata, tensors, progress.update)
    finally:
        progress.finish()
    checkpoint.check_unchanged()
    return Written(target, total, mix.kept(checkpoint.tensors.values()))


def _check_memory(needed: int) -> None:
    free = available_bytes()
    if needed > free:
        raise OutOfMemoryError(
            f"the largest tensor needs {needed / 1e6:,.0f} MB of memory to be written, and"
            f" {free / 1e6:,.0f} MB are free; unload a model, or use a machine with more memory"
        )


class _NewFile:
    """The content of the new file.

    Attributes:
        most_memory: bytes that the largest of `tensors` needs while it is written: its parts as
            they are stored and in their new type, and these once more when they are joined.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        mix: Mix,
        importance: Mapping[str, NDArray[np.float32]],
        quantiser: Quantiser,
    ) -> None:
        self._checkpoint = checkpoint
        self._mix = mix
        self._importance = importance
        self._quantiser = quantiser
        self._from_gguf = isinstance(checkpoint, GGUFCheckpoint)
        self.most_memory = 0

    def metadata(self) -> dict[str, object]:
        checkpoint = self._checkpoint
        if isinstance(checkpoint, GGUFCheckpoint):
            found = {k: v for k, v in checkpoint.metadata.items() if not k.startswith("split.")}
        else:
            spec = checkpoint.tokenizer()
            byte_level = spec.algorithm == "bpe"
            pre_tokenizer = pre_tokenizer_name(spec) if byte_level else None
            read = checkpoint.hyperparameters
            found = exported_metadata(checkpoint, pre_tokenizer)
            if read.get("rope.scaling") == "longrope":
                found[exported_key(checkpoint, "rope.attention_factor")] = longrope_scale(read)
        found["general.quantization_version"] = 2
        if self._mix.target is not None:
            found["general.file_type"] = _FILE_TYPES[self._mix.target]
        return found

    def tensors(self) -> list[NewTensor]:
        """The tensors to write. Those that the source stores as one tensor stay one."""
        checkpoint = self._checkpoint
        groups: dict[str, list[TensorInfo]] = {}
        for stored in checkpoint.tensors.values():
            if is_exported(checkpoint, stored.name):
                for tensor in exported_tensors(checkpoint, stored):
                    groups.setdefault(exported_name(checkpoint, tensor.name), []).append(tensor)
        if needs_output_matrix(checkpoint):
            output = exported_name(checkpoint, "output.weight")
            groups[output] = exported_tensors(checkpoint, checkpoint.tensors["embedding.weight"])
        new = [self._tensor(name, _in_row_order(parts)) for name, parts in groups.items()]
        if not self._from_gguf:
            for name, values in _rope_divisors(checkpoint.hyperparameters).items():
                raw = values.view(np.uint8)
                new.append(
                    NewTensor(
                        exported_name(checkpoint, name),
                        values.shape,
                        TensorType.F32,
                        partial(_same, raw),
                    )
                )
        return new

    def _tensor(self, name: str, parts: Sequence[TensorInfo]) -> NewTensor:
        first = parts[0]
        kind = self._mix.type_of(first)
        if kind is first.type and not self._from_gguf:
            kind = _float_type(first)
        axis = 1 if is_of_experts(first) else 0
        rows = sum(part.shape[axis] for part in parts)
        shape = (*first.shape[:axis], rows, *first.shape[axis + 1 :])
        if len(parts) == 1:
            shape = exported_shape(self._checkpoint, first)
        content = partial(self._content, name, parts, kind)
        new = NewTensor(name, shape, kind, content)
        needed = sum(part.nbytes for part in parts) + 2 * new.nbytes
        self.most_memory = max(self.most_memory, needed)
        return new

    def _content(
        self, name: str, parts: Sequence[TensorInfo], kind: TensorType
    ) -> NDArray[np.uint8]:
        contents = [self._part(part, kind, self._importance.get(name)) for part in parts]
        if len(contents) == 1:
            return contents[0]
        stack = parts[0].shape[0] if is_of_experts(parts[0]) else 1
        return np.concatenate([c.reshape(stack, -1) for c in contents], axis=1).reshape(-1)

    def _part(
        self, tensor: TensorInfo, kind: TensorType, importance: NDArray[np.float32] | None
    ) -> NDArray[np.uint8]:
        checkpoint = self._checkpoint
        raw = exported_content(checkpoint, tensor)
        if kind is tensor.type:
            return raw
        if kind is TensorType.F32:
            return dequantize(raw, tensor.type, tensor.shape).reshape(-1).view(np.uint8)
        return self._quantiser.quantise(checkpoint, tensor, raw, kind, importance)


def _same(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return content


def _float_type(tensor: TensorInfo) -> TensorType:
    """llama.cpp wants vectors, biases, filters and the routers of experts in F32."""
    is_small = tensor.name.endswith((".router.weight", ".shared_gate.weight", "conv.weight"))
    is_vector = len(tensor.shape) == 1 or tensor.name.endswith(".bias")
    return TensorType.F32 if is_vector or is_small else tensor.type


def _rope_divisors(read: Hyperparameters) -> dict[str, NDArray[np.float32]]:
    """The divisors of frequencies that GGUF has as tensors, by canonical name."""
    dim = read.integer("rope.dim", read.integer("key_dim", _head_dim(read)))
    match read.get("rope.scaling"):
        case "llama3":
            scaled = llama3(
                RopeSpec(dim, read.number("rope.base", 10000.0), False),
                read.number("rope.factor"),
                read.integer("rope.original_context"),
                read.number("rope.low_turns", 1.0),
                read.number("rope.high_turns", 4.0),
            )
            return {"rope_divisors.weight": np.array(scaled.factors, np.float32)}
        case "longrope":
            return {
                f"rope_divisors_{kind}.weight": np.array(
                    read.numbers(f"rope.{kind}_divisors", dim // 2), np.float32
                )
                for kind in ("long", "short")
            }
    return {}


def _head_dim(read: Hyperparameters) -> int:
    return read.integer("width") // read.integer("heads")


def _in_row_order(parts: Iterable[TensorInfo]) -> list[TensorInfo]:
    """The parts of a fused tensor, in the order of their rows."""
    order = [part for fused in FUSED_PARTS.values() for part in fused]

    def place(tensor: TensorInfo) -> int:
        part = tensor.name.rpartition(".")[0].rpartition(".")[2]
        return order.index(part) if part in order else 0

    return sorted(parts, key=place)
