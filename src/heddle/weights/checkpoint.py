"""The checkpoint: what a model is loaded from, independent of the format of its files.

A reader (`weights/gguf/`) turns files into a :class:`Checkpoint`. Models, executors and the
tokenizer only read canonical names. Details of a format (names, prefixes, the order in which a
head's elements are paired for rotation) stay in its reader. Errors still use the names that a user
finds in the file: :meth:`Hyperparameters.label` and :meth:`Checkpoint.label` return them.

Canonical names of tensors::

    embedding, output_norm, output, rope_divisors
    layer_inputs.{embedding,projection,norm}: of inputs that each layer has of its own
    dense.{0,1}: matrices of an encoder after its last norm
    layers.{i}.scale, layers.{i}.input.{gate,projection}, layers.{i}.post_input_norm
    layers.{i}.norm: where a layer has one part
    layers.{i}.attention_norm, layers.{i}.post_attention_norm
    layers.{i}.attention.{q,k,v,output,q_norm,k_norm,sinks}
    layers.{i}.attention.{query,query_norm,query_heads}: where queries are compressed
    layers.{i}.attention.{latent_key,latent_norm,head_keys,head_values}: latent attention
    layers.{i}.mixer.{qkv,z,beta,alpha,conv,step_bias,decay_rates,norm,output}: of a recurrence
    layers.{i}.mixer.{qkvz,ba}: in place of qkv and z, and of beta and alpha
    layers.{i}.mixer.{inputs,skip}: of Mamba-2 and short convolutions, in place of qkv
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

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias, TypeVar

from heddle.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from heddle.weights.files import FileStamp
    from heddle.weights.generation import Recommended
    from heddle.weights.tensor_types import TensorType

N = TypeVar("N", int, float)

_SMALLEST_FLOAT, _LARGEST_FLOAT = 2.0**-126, 2.0**127

HYPERPARAMETERS = {
    "layers": "number of layers",
    "parallel": "whether both parts of a layer read the same hidden state",
    "prediction_layers": "number of layers after the last one, each of a head for further tokens",
    "width": "elements of the hidden state between layers",
    "mlp_width": "elements of the inner state of a feed-forward layer; may be a list, by layer",
    "heads": "query heads",
    "kv_heads": "key/value heads; may be a list, by layer",
    "key_dim": "elements of a head's key and query; may be a list, by layer",
    "value_dim": "elements of a head's value; may be a list, by layer",
    "query_rank": "elements of the vector that queries are made from; absent: the hidden state",
    "latent_rank": "elements of the latent of a position, of which heads make keys and values",
    "shared_layers": "number of last layers that read the keys and values of an earlier layer",
    "layer_input_width": "elements of the input that each layer has of its own; 0: none",
    "recurrent_layers": "for each layer, whether it has a recurrence in place of attention",
    "recurrence_beside": "whether all layers have a recurrence beside attention",
    "layer_parts": "for each layer of one part, which it is: recurrence, attention or mlp",
    "attention_period": "every so many layers, one has attention, and the others a recurrence",
    "state.heads": "heads of values of a recurrence",
    "state.groups": "heads of its queries and keys",
    "state.key_dim": "elements of its queries and keys",
    "state.value_dim": "elements of its values",
    "state.inner": "elements of all its values",
    "state.taps": "positions that its convolution sees, the token itself included",
    "state.tiled": "whether value head i has key head i modulo their number",
    "state.stream_scales": "factors on its gates, values, keys, queries and step sizes",
    "state.result_scale": "factor on its result",
    "context": "most tokens of a sequence",
    "vocabulary": "number of token ids",
    "norm_eps": "term that a norm adds to the mean square",
    "window": "positions that a layer with a sliding window sees",
    "window_period": "number of layers after which one layer sees all positions",
    "window_layers": "for each layer, whether it only sees a window",
    "experts": "number of experts in a layer with a mixture of experts",
    "experts_used": "experts that compute each token",
    "expert_width": "elements of the inner state of an expert",
    "expert_latent": "elements of the latent that experts read; 0: they read the hidden state",
    "shared_expert_width": "elements of the inner state of all shared experts together",
    "shared_experts": "number of shared experts, each as wide as an expert",
    "dense_layers": "number of layers before the first one with experts",
    "expert_layers": "for each layer, whether it has experts",
    "expert_scoring": "softmax, softmax_of_chosen or sigmoid of the router's logits",
    "expert_weights_normalised": "whether a token's expert weights are divided by their sum",
    "expert_weights_scale": "factor on expert weights",
    "expert_groups": "groups of experts",
    "expert_groups_used": "groups that a token's experts come from",
    "expert_group_best": "experts of a group whose scores count when groups are chosen",
    "expert_limit": "clamped activation: limit of gate and up",
    "expert_slope": "clamped activation: factor on the gate in the sigmoid",
    "activation": "activation of feed-forward layers: silu, gelu, clamped, squared_relu",
    "attention.scale_dim": "scores are divided by the square root of this",
    "attention.scale": "factor on scores; the default is 1 over the root of a head's elements",
    "attention.result_scale": "factor on the result of attention",
    "mlp.gate_scale": "factor on the gates of feed-forward layers",
    "mlp.result_scale": "factor on the result of feed-forward layers",
    "attention.temperature": "growth of queries with their position; 0: none",
    "attention.temperature_length": "positions after which queries grow by one more step",
    "attention.score_cap": "soft cap on scores of attention; 0: no cap",
    "logit_cap": "soft cap on logits; 0: no cap",
    "logit_divisor": "divisor of logits",
    "embedding_scale": "factor on embeddings",
    "residual_scale": "factor on what a layer's parts add to the hidden state",
    "rope.layers": "for each layer, whether it has rotary positions",
    "rope.layer_period": "number of layers after which one layer has no positions",
    "rope.dim": "leading elements of a head that are rotated",
    "rope.base": "frequency base",
    "rope.local_base": "frequency base of layers with a sliding window",
    "rope.local_dim": "leading elements of a head that such layers rotate",
    "rope.share": "proportional: share of a head's pairs that rotate",
    "rope.interleaved": "whether rotation pairs neighbours; if not, it pairs the two halves",
    "rope.scaling": "kind of scaling: none, linear, dynamic, llama3, yarn, longrope, proportional",
    "rope.factor": "factor by which scaling stretches the context",
    "rope.original_context": "most tokens of a sequence before scaling",
    "rope.attention_factor": "factor on queries and keys that goes with the scaling",
    "latent_norm_eps": "term that the norms of latents and compressed queries add",
    "rope.score_factor": "factor on scores that goes with the scaling",
    "rope.beta_fast": "yarn: pairs with at least so many rotations in the original context stay",
    "rope.beta_slow": "yarn: pairs with fewer rotations are stretched in full",
    "rope.whole_pairs": "yarn: whether stretching begins and ends at a pair, not between two",
    "rope.low_turns": "llama3: pairs with fewer rotations are stretched in full",
    "rope.high_turns": "llama3: pairs with at least so many rotations in the original context stay",
    "rope.short_divisors": "longrope: divisors of frequencies within the original context",
    "rope.long_divisors": "longrope: divisors of frequencies beyond it",
    "causal": "whether tokens see no later tokens; if not, the model is an encoder",
    "dense.0.width": "width of the result of the first dense layer of embeddings",
    "dense.1.width": "width of the result of the second one",
    "pooling": "how an embedding is computed: mean, first, last; rank: scores of documents",
}
"""Canonical names and meanings of hyperparameters. A reader gives those that its files have."""


_COUNTS_OF_LAYERS = ("layers", "prediction_layers", "shared_layers", "dense_layers")
_SIZES = (
    *("width", "heads", "kv_heads", "key_dim", "value_dim", "query_rank"),
    *("latent_rank", "layer_input_width", "vocabulary", "rope.dim", "rope.local_dim"),
    *("state.heads", "state.groups", "state.key_dim", "state.value_dim", "state.inner"),
    *("state.taps", "experts", "experts_used", "expert_latent", "shared_experts"),
    *("expert_groups", "expert_groups_used", "expert_group_best"),
)
"""Sizes of which something is made before a tensor of the size is claimed. A width of feed-forward
layers is not among them: a file may name one that its model does not use."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds of a model's counts, which its tensors set.

    A file of 400 bytes may claim any number of layers. A reader checks a count before it makes
    anything of that size. The number of tokens in a context is no such count: memory limits it.

    Attributes:
        tensors: number of tensors. Each layer has one.
        longest: elements along the longest axis. Each size is, or divides, the size of an axis.
    """

    tensors: int
    longest: int

    @classmethod
    def of(cls, shapes: Iterable[tuple[int, ...]]) -> Bounds:
        """The bounds that tensors of these shapes set."""
        axes = [max(shape, default=1) for shape in shapes]
        return cls(len(axes), max(axes, default=0))

    def check(self, name: str, value: object, label: str) -> None:
        """Check a hyperparameter, or each entry of a list. `label` is the file's own name of it.

        Raises:
            ModelFileError: it is a count, and the tensors do not allow it.
        """
        if name not in _COUNTS_OF_LAYERS and name not in _SIZES:
            return
        most = self.longest if name in _SIZES else self.tensors
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and abs(one) > most:
                raise ModelFileError(
                    f"{label} is {one}, but the tensors of the file allow at most {most}; the file"
                    " is damaged, fetch it again",
                    field=label,
                )


class Hyperparameters:
    """The hyperparameters of a model, under canonical names.

    Each method raises :class:`ModelFileError` if a value is missing or of the wrong kind. The error
    uses the file's own name.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        label: Callable[[str], str] = str,
        bounds: Bounds | None = None,
    ) -> None:
        """`values` by canonical name. `label` returns the file's own name of a canonical name.

        Raises ModelFileError: a count exceeds the `bounds` of a file.
        """
        if bounds is not None:
            for name, value in values.items():
                bounds.check(name, value, label(name))
        unknown = values.keys() - HYPERPARAMETERS.keys()
        assert not unknown, f"not canonical names: {unknown}"
        self._values = values
        self._label = label

    def label(self, name: str) -> str:
        """The file's own name of the hyperparameter `name`."""
        return self._label(name)

    def get(self, name: str, default: object = None) -> object:
        """The value as the file has it. It may be of any kind."""
        return self._values.get(name, default)

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        return self._number(name, int, default)

    def count(self, name: str, default: int = 0) -> int:
        """A whole number, zero or more."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.fail(name, f"must be a whole number, zero or more, got {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number that float32 holds."""
        return self._number(name, float, default)

    def positive_or_zero(self, name: str, default: float) -> float:
        """A positive number that float32 holds, or 0."""
        value = self._values.get(name, default)
        return 0.0 if value == 0 and value is not False else self._checked(name, value, float)

    def integers(self, name: str, entries: int, default: int | None = None) -> tuple[int, ...]:
        """Return `entries` positive whole numbers; one number stands for all."""
        values = self._values.get(name, default)
        if not isinstance(values, list):
            return (self._checked(name, values, int),) * entries
        if len(values) != entries:
            self.fail(name, f"must have {entries} entries, got {values!r}")
        return tuple(self._checked(name, value, int) for value in values)

    def numbers(self, name: str, entries: int) -> tuple[float, ...]:
        """Return `entries` positive numbers that float32 holds."""
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) != entries:
            self.fail(name, f"must be a list of {entries} numbers, got {values!r}")
        return tuple(self._checked(name, value, float) for value in values)

    def choice(self, name: str, options: tuple[str, ...], default: str) -> str:
        """One of some names."""
        value = self._values.get(name, default)
        if not isinstance(value, str) or value not in options:
            label = self.label(name)
            raise UnsupportedModelError(
                f"{label} {value!r} is not supported; supported: {', '.join(options)}", param=label
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, got {value!r}")
        return value

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise the error of a wrong hyperparameter, or of one that contradicts another."""
        label = self.label(name)
        raise ModelFileError(f"{label} {problem}", field=label)

    def _number(self, name: str, kind: type[N], default: N | None) -> N:
        return self._checked(name, self._values.get(name, default), kind)

    def _checked(self, name: str, value: object, kind: type[N]) -> N:
        allowed = (int,) if kind is int else (int, float)
        low, high = (1, math.inf) if kind is int else (_SMALLEST_FLOAT, _LARGEST_FLOAT)
        if isinstance(value, bool) or not isinstance(value, allowed) or not low <= value <= high:
            whole = "whole " if kind is int else ""
            self.fail(name, f"must be a positive {whole}number, got {value!r}")
        return kind(value)


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
        algorithm: "bpe" (byte-level byte pairs) or "sentencepiece".
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
