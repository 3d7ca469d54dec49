"""The checkpoint: what a model is loaded from, independent of the format of its files.

A reader (`weights/gguf/`) turns files into a :class:`Checkpoint`. Models, executors and the
tokenizer only read canonical names. Details of a format (names, prefixes, the order in which a
head's elements are paired for rotation) stay in its reader. Errors still use the names that a user
finds in the file: :meth:`Hyperparameters.label` and :meth:`Checkpoint.label` return them.

Canonical names of tensors::

    embedding, output_norm, output, rope_divisors
    layer_inputs.{embedding,projection,norm}: of inputs that each layer has of its own
    dense.{0,1}: matrices of an encoder after its last norm
    {encoder,decoder}.{positions,embedding_norm}: of an encoder with a decoder
    layers.{i}.cross.attention.{q,k,v,output}, layers.{i}.cross.post_attention_norm: of that decoder
    layers.{i}.scale, layers.{i}.input.{gate,projection}, layers.{i}.post_input_norm
    layers.{i}.norm: where a layer has one part
    layers.{i}.attention_norm, layers.{i}.post_attention_norm
    layers.{i}.attention.{q,k,v,output,q_norm,k_norm,sinks}
    layers.{i}.attention.{query,query_norm,query_heads}: where queries are compressed
    layers.{i}.attention.{latent_key,latent_norm,head_keys,head_values}: latent attention
    layers.{i}.mixer.{qkv,z,beta,alpha,conv,step_bias,decay_rates,norm,output}: of a recurrence
    layers.{i}.mixer.{qkvz,ba}: in place of qkv and z, and of beta and alpha
    layers.{i}.mixer.{inputs,skip}: of Mamba-2 and short convolutions, in place of qkv
    layers.{i}.mixer.{scan_inputs,step,step_norm,key_norm,query_norm}: of Mamba, beside them
    layers.{i}.attention.{q_conv,k_conv,v_conv,beta,alpha_in,alpha_out,step_bias,decay_rates,norm,
    z_in,z_out}: of Kimi delta attention, beside q, k, v and output
    layers.{i}.mlp_norm, layers.{i}.post_mlp_norm
    layers.{i}.mlp.{gate,up,down}
    layers.{i}.{experts_norm,post_dense_norm,post_experts_norm}: where both parts are in parallel
    layers.{i}.mlp.{router,router_norm,selection_bias,expert_scales,shared_gate}
    layers.{i}.mlp.{experts,shared}.{gate,up,down}
    layers.{i}.mlp.{latent,result}: where experts read a latent, not the hidden state

each followed by `.weight`, or by `.bias`. The tensors of experts are stacked: the first axis is the
expert. So are head_keys (heads, latent, key) and head_values (heads, value, latent).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from heddle.weights.files import FileStamp
    from heddle.weights.generation import Recommended
    from heddle.weights.hyperparameters import Hyperparameters
    from heddle.weights.tensor_types import TensorType


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A place in an open file, for readers that read from it without a copy."""

    descriptor: int
    offset: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint, and the place of its bytes.

    Attributes:
        name: canonical name; the file's own name if there is none.
        shape: row-major, the last axis contiguous.
        type: storage type.
        nbytes: its size in bytes.
        label: the file's own name.
        place: the place of its bytes; None if the files do not store them as `type` in one piece.
            Then :meth:`Checkpoint.read` makes them.
        slices: of a tensor that is stored in slices along its first axis, their places; else empty.
        start: its first byte within the stored tensor `label`, which may hold other tensors too.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    nbytes: int
    label: str
    place: FilePlace | None
    slices: tuple[FilePlace, ...] = ()
    start: int = 0

    @property
    def has_place(self) -> bool:
        """Whether the files store its bytes, in one piece or in slices."""
        return self.place is not None or bool(self.slices)

    def place_of_slice(self, index: int) -> FilePlace:
        """The place of slice `index` along the first axis. The tensor must have a place."""
        if self.slices:
            return self.slices[index]
        assert self.place is not None, f"tensor {self.label} has no place in a file"
        size = self.nbytes // self.shape[0]
        return FilePlace(self.place.descriptor, self.place.offset + index * size)


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """The description of a tokenizer. Except `merges`, its lists have one entry for each token id.

    Attributes:
        algorithm: "bpe" (byte-level byte pairs), "sentencepiece", or the name of a
            :class:`heddle.weights.tokenizer_kind.TokenizerKind`.
        pieces: each token's text as stored.
        types: numbers of :class:`heddle.text.tokenizer.vocabulary.TokenType`; None if the files do
            not say.
        merges: pairs of pieces with a space between, best first.
        scores: for "sentencepiece", if the files have no merges: the pair that makes the piece with
            the highest score is joined first.
        pre_tokenizer: name of the pre-tokenizer, which cuts text into words; None: the default.
        patterns: for "bpe": the patterns that cut text into words, if the files have them; None if
            they name a `pre_tokenizer`.
        whole_words: with `patterns`: whether a word that is a piece becomes one token, whatever the
            merges say.
        end_ids: more ids that end a generation.
        text_end: id of the token that ends texts where `add_eos`; None: EOS.
        between: ids between the two texts of a pair.
        pipeline: what a kind of an extension needs to know beside the other attributes.
        roles: ids of tokens that the files name for a role: bos, eos, eot, eom, fim_prefix,
            fim_suffix, fim_middle, fim_pad, fim_repository, fim_separator.
        add_bos: whether texts begin with BOS; None if the files do not say.
        add_eos: whether texts end with EOS; None if the files do not say.
        add_space_prefix: whether texts begin with a space; None if the files do not say.
        label: returns the file's own name of an attribute or of a role's token, for errors.
    """

    algorithm: str
    pieces: list[str]
    types: list[int] | None
    merges: list[str]
    scores: list[float]
    pre_tokenizer: str | None
    roles: Mapping[str, int]
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None
    label: Callable[[str], str]
    patterns: tuple[str, ...] | None = None
    whole_words: bool = False
    end_ids: tuple[int, ...] = ()
    text_end: int | None = None
    between: tuple[int, ...] = ()
    pipeline: str = ""

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise the error of a wrong attribute, or of one that contradicts another."""
        label = self.label(name)
        raise ModelFileError(f"{label} {problem}", field=label)

    def check_entries(self, name: str, entries: int) -> None:
        """Raise ModelFileError unless `name` has an entry for each token."""
        if entries != len(self.pieces):
            self.fail(name, f"has {entries} entries for {len(self.pieces)} tokens")


class Checkpoint(Protocol):
    """The opened files of a model. A reader checks everything in them before use.

    Attributes:
        path: the file or folder.
        format: name of the format, "gguf" or "hf".
        architecture: the architecture's name in that format.
        hyperparameters: hyperparameters under canonical names.
        tensors: tensors by canonical name, in the order of the files.
        chat_template: source of the chat template; None without one.
        prompts: texts that go before inputs of embeddings, by name.
        default_prompt: the text that goes before inputs without a named prompt; may be empty.
        stamps: of each file with tensors, from when it was opened.
    """

    path: Path
    format: str
    architecture: str
    hyperparameters: Hyperparameters
    tensors: Mapping[str, TensorInfo]
    chat_template: str | None
    prompts: Mapping[str, str]
    default_prompt: str

    @property
    def stamps(self) -> Mapping[Path, FileStamp]: ...

    def label(self, name: str) -> str:
        """The file's own name of the tensor `name`, also if the file lacks it."""
        ...

    def tokenizer(self) -> TokenizerSpec:
        """The description of the tokenizer.

        Raises:
            UnsupportedModelError: its algorithm is not supported.
            ModelFileError: a value is missing or of the wrong kind.
        """
        ...

    def recommended(self) -> Recommended:
        """The sampling parameters that the files recommend.

        Raises:
            ModelSourceError, ModelFileError: their file cannot be read, or is damaged.
        """
        ...

    def read(self, name: str, start: int = 0, size: int | None = None) -> NDArray[np.uint8]:
        """The bytes (nbytes,) of tensor `name`, in memory; or `size` bytes from byte `start` on.

        Raises:
            ModelFileError: the file has no such tensor, or ends before the tensor does.
            ModelSourceError: the file cannot be read.
        """
        ...

    def reads_parts(self, name: str) -> bool:
        """Whether a part of tensor `name` takes less work to read than the whole."""
        ...

    def check_unchanged(self) -> None:
        """Check that nobody has written to the files since they were opened.

        Raises:
            ModelFileError: somebody has.
        """
        ...


CheckArchitecture: TypeAlias = "Callable[[str, str], object]"
"""Called with the format and the architecture's name in it; raises UnsupportedModelError."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The description of a model by its files, unchecked.

    Attributes:
        format: name and version of the format.
        file_bytes: size of the files.
        architecture: name of the architecture; None if the files do not say.
        name: name of the model; None if the files do not say.
        hyperparameters: hyperparameters under canonical names.
        tensors: type, shape and bytes of each tensor.
        sampling: the sampling parameters that the files recommend.
        end_tokens: ids of the tokens that the files name as ends of a generation, and their texts;
            None where the files do not say.
        metadata: all metadata, as values that JSON has. A long array is a mapping with its `length`
            and its `first` elements.
    """

    format: str
    file_bytes: int
    architecture: str | None
    name: str | None
    hyperparameters: Hyperparameters
    tensors: tuple[tuple[TensorType, tuple[int, ...], int], ...]
    sampling: Mapping[str, object]
    end_tokens: Mapping[int, str | None]
    metadata: Mapping[str, object]


def claim(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> TensorInfo:
    """The tensor `name`, which must have `shape`.

    Raises:
        ModelFileError: the tensor is missing or has another shape.
    """
    label = checkpoint.label(name)
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise ModelFileError(f"{checkpoint.path}: tensor {label} is missing", field=label)
    if tensor.shape != shape:
        raise ModelFileError(
            f"{checkpoint.path}: tensor {label} has shape {tensor.shape}; the hyperparameters"
            f" require {shape}",
            field=label,
        )
    return tensor


def non_finite_weights(checkpoint: Checkpoint, tensor: TensorInfo, where: str) -> ModelFileError:
    """The error for a tensor with infinite or NaN weights. `where` names the first such weight."""
    return ModelFileError(
        f"{checkpoint.path}: tensor {tensor.label} has infinite or NaN weights"
        f" ({where}), so no answer would be right; fetch the file again, or look into it"
        " with --allow-nonfinite",
        field=tensor.label,
    )
