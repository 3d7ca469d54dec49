"""Hyperparameters of a model under canonical names, and the bounds that its tensors set.

A reader gives those that its files have. Errors use the names that a user finds in the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from heddle.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
    "layer_input_rows": "tokens for which there are such inputs; others take those of the first",
    "active_stream": "index of the stream that layers compute, where they compute one",
    "bypass_rank": "elements of a narrow path around attention",
    "gate_cuts": "by layer, standard deviations above which it keeps gates; -inf: it keeps all",
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
    "state.step_rank": "elements that Mamba makes the step sizes of all channels from",
    "state.norm_eps": "Mamba: epsilon of norms of step sizes, keys and queries; absent: no norms",
    "state.tiled": "whether value head i has key head i modulo their number",
    "state.ranks": "elements of the vectors that its decays, rates, gates and values are made from",
    "state.stream_scales": "factors on its gates, values, keys, queries and step sizes",
    "state.result_scale": "factor on its result",
    "context": "most tokens of a sequence",
    "dense_context": "tokens up to which sparse attention sees all of them; absent: it is dense",
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
    "expert_scoring": "how scores of experts come from router logits; see `ExpertSpec`",
    "expert_weights_normalised": "whether a token's expert weights are divided by their sum",
    "expert_weights_scale": "factor on expert weights",
    "expert_groups": "groups of experts",
    "expert_groups_used": "groups that a token's experts come from",
    "expert_group_best": "experts of a group whose scores count when groups are chosen",
    "expert_limit": "clamped or limited activation: limit of gate and up; may be a list, by layer",
    "mlp_limit": "for each layer, limit of gate and up outside of experts; 0: none",
    "expert_slope": "clamped activation: factor on the gate in the sigmoid",
    "activation": "activation of feed-forward layers: silu, gelu, clamped, squared_relu",
    "activation_numbers": "lists by layer of numbers of a learnt activation, by the files' names",
    "listed_layers": "number of first layers whose experts a table lists for each token id",
    "streams": "streams of the hidden state",
    "streams.turns": "times that the sums of their weights are balanced",
    "streams.eps": "term that these weights and their sums add",
    "compression": "for each layer, positions of which one compressed key is made; 0: none",
    "compression.overlapping": "such positions where a compressed key reads those before, too",
    "output_groups": "groups of heads, each with a matrix before the output matrix",
    "output_rank": "rows of such a matrix",
    "attention.scale_dim": "scores are divided by the square root of this",
    "attention.scale": "factor on scores; the default is 1 over the root of a head's elements",
    "attention.plain_norms": "whether rotated queries and keys have norms without weights",
    "attention.value_scale": "factor on values",
    "attention.gates": "gates of attention: per-head or per-element",
    "attention.result_scale": "factor on the result of attention",
    "mlp.gate_scale": "factor on the gates of feed-forward layers",
    "mlp.result_scale": "factor on the result of feed-forward layers",
    "attention.temperature": "growth of queries with their position; 0: none",
    "attention.temperature_length": "positions after which queries grow by one more step",
    "attention.chunk": "positions of a run, of which a token sees its own run; absent: no runs",
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
    "seeing_layers": "number of first layers to whose results rows of pictures are added",
    "rope.sections": "pairs of a head that turn by time, height and width",
    "rope.sections_alternate": "whether the pairs of these axes alternate, as far as they go",
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
    "dense.activations": "their activations, which may be empty; absent: none has any",
    "pooling": "how an embedding is computed: mean, cls, last; rank: scores of documents",
    "positions": "how tokens know their positions: table, rotary or slopes (ALiBi)",
    "gated": "whether feed-forward layers have gates",
    "segments": "rows of the table of segments of a sequence, such as a question and its answer",
    "embedding_width": "width of embeddings that a matrix brings to the width of an encoder",
    "separator": "token id that ends a segment",
    "first_position": "row of the table of positions that the first token takes",
    "labels": "names of a classifier's classes; absent: the model is no classifier",
    "problem_type": "what a classifier's logits mean, in the words of `transformers`",
    "classifier_activation": "activation between a classifier's two matrices",
    "classifier_last": "whether a classifier reads the last token, not the first one",
    "decoder_layers": "number of layers of a decoder that reads what an encoder makes of a text",
    "decoder_start": "token id that such a decoder reads before the first token of a text",
    "classifier_mean": "whether a classifier reads the mean of all tokens, not the first one",
}
"""Canonical names and meanings of hyperparameters. A reader gives those that its files have."""

_COUNTS_OF_LAYERS = tuple(
    f"{one}layers" for one in ("", "prediction_", "shared_", "dense_", "listed_", "decoder_")
)
_SIZES = (
    *("width", "heads", "kv_heads", "key_dim", "value_dim", "query_rank"),
    *("latent_rank", "layer_input_width", "vocabulary", "rope.dim", "rope.local_dim"),
    *("state.heads", "state.groups", "state.key_dim", "state.value_dim", "state.inner"),
    *("state.taps", "state.step_rank", "experts", "experts_used", "expert_latent"),
    *("shared_experts", "expert_groups", "expert_groups_used", "expert_group_best"),
    *("dense.0.width", "dense.1.width"),
    *("streams", "output_groups", "output_rank"),
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
