"""The operations that architectures are written with.

An architecture calls :class:`Loader` once to claim its tensors, and :class:`Ops` once per recorded
or executed forward pass. Arrays and weights are opaque: no indexing, no operators, no branches on
data. So the same code runs eagerly in NumPy and is recorded into a native program.

Operations do not depend on how a weight is stored: `linear(x, w)` chooses its kernel by the handle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import mul
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

A = TypeVar("A")
"""Array handle of an implementation."""
W_contra = TypeVar("W_contra", contravariant=True)
"""Weight handle that `Ops` takes."""
W_co = TypeVar("W_co", covariant=True)
"""Weight handle that a `Loader` returns."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """Growth of queries with position p: by 1 + beta * ln(1 + floor((p + first) / length)).

    Ministral 3 has it, after Llama 4 (`first` 1) and Nakanishi 2025 (arXiv:2501.19399).
    """

    beta: float
    length: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Attributes:
        dim: elements of each head that are rotated; even.
        base: frequency base; pair i turns by position * base**(-2i/dim) / factors[i].
        interleaved: pairs are (2i, 2i+1) if true, (i, i + dim/2) if false.
        factors: divisor of each pair's frequency (long-context scaling); empty: no divisors.
        scale: factor on the rotated elements.
        divisors: name of a tensor with one more divisor for each pair, which :meth:`with_divisors`
            adds; empty: no such tensor.
        temperature: one more factor on the rotated elements, which depends on the position.
        first: index of the first rotated element of a head.
        offset: what is added to each position.
        axes: for each pair, the axis whose place turns it, in pictures and texts with pictures
            (Wang et al. 2024, arXiv:2409.12191, section 2.1); empty: positions turn all pairs.
    """

    dim: int
    base: float
    interleaved: bool
    factors: tuple[float, ...] = ()
    scale: float = 1.0
    divisors: str = ""
    temperature: Temperature | None = None
    first: int = 0
    offset: int = 0
    axes: tuple[int, ...] = ()

    @classmethod
    def still(cls, dim: int) -> RopeSpec:
        """A rotation by no angle, for factors on the elements alone."""
        return cls(dim, 1.0, True, (math.inf,) * (dim // 2))

    def with_divisors(self, divisors: Sequence[float]) -> RopeSpec:
        """The same rotation, with each pair's frequency also divided by its divisor."""
        factors = self.factors or (1.0,) * (self.dim // 2)
        product = tuple(map(mul, divisors, factors))
        return replace(self, factors=product, divisors="")

    def at(self, first: int) -> RopeSpec:
        """The same rotation, of the elements from `first` on."""
        return replace(self, first=first)

    def scales(self, positions: NDArray[np.integer]) -> NDArray[np.float64]:
        """The factor on the rotated elements at each of the positions (T,): (T,)."""
        factors = np.full(len(positions), self.scale)
        if self.temperature is not None:
            growth = self.temperature
            turns = np.floor((positions + growth.first) / growth.length)
            factors *= 1.0 + growth.beta * np.log1p(turns)
        return factors


class PositionBias(Protocol):
    """What joins scores of attention by the distance of two positions. It can be hashed."""

    def of(self, distances: NDArray[np.integer]) -> NDArray[np.float64]:
        """The terms of each head (heads, n) at `distances` (n,): a position less the query's."""
        ...


@dataclass(frozen=True, slots=True)
class Slopes:
    """ALiBi (Press et al. 2022, arXiv:2108.12409): scores fall by a factor of each head."""

    factors: tuple[float, ...]

    @classmethod
    def of_heads(cls, heads: int, most: float = 8.0) -> Slopes:
        """The factors of so many heads. The last of them, if a power of 2, has 2**-most.

        If `heads` is no power of 2, the factors between those of the next power of 2 come last.
        """
        whole = 1 << (heads.bit_length() - 1)
        first = [2.0 ** (-most * (i + 1) / whole) for i in range(whole)]
        between = [2.0 ** (-most * (i + 0.5) / whole) for i in range(heads - whole)]
        return cls((*first, *between))

    def of(self, distances: NDArray[np.integer]) -> NDArray[np.float64]:
        """See :class:`PositionBias`."""
        return np.outer(self.factors, -np.abs(distances))


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention.

    Attributes:
        heads: query heads, a multiple of kv_heads.
        kv_heads: key/value heads.
        head_dim: elements per head, the same for keys and values.
        scale: factor on query·key; the product is a score.
        window: number of positions that a token sees, itself included; 0: all up to itself.
        aligned: whether positions are cut into runs of `window`, and a token sees those of its run.
        soft_cap: c turns each score s into c * tanh(s / c) before the softmax (Gemma Team 2024,
            arXiv:2408.00118); 0: no cap.
        causal: whether a token sees no later positions. If not, `window` counts on either side, and
            one step must compute the whole sequence.
        bias: what joins the scores by distance, after scale and cap; None: nothing.
        runs: the kind of runs (:class:`heddle.step.Sight`) that a token sees to their ends; 0:
            none. Without `causal` it sees its run alone.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    soft_cap: float = 0.0
    causal: bool = True
    bias: PositionBias | None = None
    aligned: bool = False
    runs: int = 0


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Latent attention (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1): heads share one vector.

    The vector of a position is its latent, which is the value of all heads, and then a rotated key.

    Attributes:
        heads: query heads.
        rank: elements of the latent.
        rope_dim: elements of the rotated key.
        scale: factor on query·key; the product is a score.
    """

    heads: int
    rank: int
    rope_dim: int
    scale: float


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """Mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): how each token's are chosen.

    Scores of the experts come from router logits. A token uses the experts with the highest scores;
    equal scores prefer the lower index. Its result is the weighted sum of their results, in the
    order of their index.

    Attributes:
        count: number of experts.
        used: experts that compute each token.
        scoring: what the scores are. "softmax": of all logits. "softmax_of_chosen": the logits; the
            weights are the softmax over the chosen experts. "sigmoid": of each logit.
            "sqrt_softplus": the root of ln(1 + exp(logit)).
            "sparsemixer" (arXiv:2409.12136): the logits; the weight of each chosen expert is its
            softmax among itself and the lower ones that are near it: whose logit is less by at most
            2% of the larger of its own size and the chosen expert's logit.
        normalised: whether the weights are divided by their sum. A softmax over the chosen experts
            already sums to 1.
        scale: factor on the weights.
        groups: groups of consecutive experts; a divisor of `count`.
        groups_used: only experts of so many groups are chosen: those with the highest sum of their
            `group_best` best experts.
        group_best: 2 as in DeepSeek-V3 (arXiv:2412.19437), or 1 as in V2 (arXiv:2405.04434).
        selection_bias: for each expert, a term that is added to its score when experts are chosen,
            but not in its weight; empty: no such terms.
        activation: of the experts; see :meth:`Ops.gated`, or without gates :meth:`Ops.activate`.
        expert_scales: one more factor on the weight of each expert; empty: no such factors.
        weighs_input: whether the weight is a factor on what an expert reads, not on its result; for
            one expert a token.
    """

    count: int
    used: int
    scoring: str
    normalised: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    group_best: int = 2
    selection_bias: tuple[float, ...] = ()
    activation: str = "silu"
    expert_scales: tuple[float, ...] = ()
    weighs_input: bool = False


@dataclass(frozen=True, slots=True)
class StatePlace:
    """A part of the fixed-size state that a layer keeps of a sequence. It begins with zeros.

    Attributes:
        layer: number of the layer.
        first: the part's first element in the layer's state, a multiple of 16.
        count: number of float32 elements.
    """

    layer: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class LinearAttentionSpec:
    """Attention whose keys and values are summed up in one matrix for each head.

    Attributes:
        heads: heads of values, a multiple of key_heads.
        key_heads: heads of queries and keys.
        key_dim: elements of a query or key, a multiple of 4.
        value_dim: elements of a value.
        corrects: whether a value is first reduced by what the matrix returns for its key (the
            delta rule).
        tiled: which key head belongs to value head i: i % key_heads if true, else
            i // (heads / key_heads).
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    corrects: bool
    tiled: bool = False

    @property
    def state_count(self) -> int:
        """Elements of the state."""
        return self.heads * self.key_dim * self.value_dim

    def key_head(self, head: int) -> int:
        """The head of queries and keys of a value head."""
        return head % self.key_heads if self.tiled else head // (self.heads // self.key_heads)


@dataclass(frozen=True, slots=True)
class ExpertWeights(Generic[W_co]):
    """The stacked matrices of a layer's experts.

    Expert i computes down[i](activation(gate[i](x)) * up[i](x)), or without gates
    down[i](activation(up[i](x))).
    """

    gate: W_co | None
    up: W_co
    down: W_co


@dataclass(frozen=True, slots=True)
class Batch(Generic[A]):
    """Handles of a step's inputs: T tokens. The plan reads hidden states or logits of R of them.

    Attributes:
        tokens: (T,) token ids.
        positions: (T,) absolute positions.
        rows: (R,) indices of these R tokens.
        states: (T, width) hidden states that a prediction head reads; None for other models.
    """

    tokens: A
    positions: A
    rows: A
    states: A | None = None


class Operation(Protocol):
    """An operation of one family, which its extension brings; see :meth:`Ops.apply`."""

    def width(self, *inputs: int) -> int:
        """The columns of the result, from those of the inputs."""
        ...

    def emit(self, lowering: Any, inputs: list[int], out: int) -> None:
        """Append the native instruction, from the numbers of buffers (`executors/cpu/lowering`)."""
        ...

    def compute(self, chunks: Sequence[Any], *inputs: Any) -> Any:
        """The result in NumPy, of a step with these chunks (`extensions/reference/ops`)."""
        ...


class Ops(Protocol[A, W_contra]):
    """The operations of a forward pass. Float arrays are float32, (T, n), row-major."""

    def embed(self, table: W_contra, indices: A, first: int = 0) -> A:
        """Rows of `table` (rows, n) for tokens, or for positions: (T, n).

        `indices` (T,) are those of the batch. Index i takes the row `first` + i, or the first row
        of a table that has no such row but of which another table of the model has one.
        """
        ...

    def embed_segments(self, table: W_contra, tokens: A, separator: int) -> A:
        """Rows of `table` (rows, n) for the segments of sequences: (T, n).

        The segment of a token is the number of tokens `separator` before it in its sequence, at
        most the last row (Devlin et al. 2019, arXiv:1810.04805). A step holds whole sequences.
        """
        ...

    def embed_previous(self, table: W_contra, tokens: A, start: int) -> A:
        """Rows of `table` (rows, n) for the token before each one in its sequence: (T, n).

        Token `start` is before the first one (Lewis et al. 2020, arXiv:1910.13461). Tokens that the
        table lacks take its first row, as in `embed`. A step holds whole sequences.
        """
        ...

    def mean_rows(self, x: A) -> A:
        """For each row of x (T, n) the mean of all rows of its sequence, which the step holds."""
        ...

    def linear(self, x: A, w: W_contra) -> A:
        """x (T, k) times w (n, k) transposed, plus the handle's bias if it has one: (T, n)."""
        ...

    def norm(self, x: A, w: W_contra, eps: float) -> A:
        """RMS norm (Zhang & Sennrich 2019): x / sqrt(mean(x**2) + eps) * w."""
        ...

    def layer_norm(self, x: A, w: W_contra, b: W_contra, eps: float) -> A:
        """Layer norm (Ba et al. 2016, arXiv:1607.06450).

        With y = x - mean(x): y / sqrt(mean(y**2) + eps) * w + b.
        """
        ...

    def norm_heads(self, x: A, w: W_contra, eps: float, heads: int) -> A:
        """RMS norm of each head of x (T, heads * head_dim) separately.

        w is (head_dim,), or (heads * head_dim,) if each head has its own weights.
        """
        ...

    def scale(self, x: A, factor: float) -> A:
        """x * factor, elementwise."""
        ...

    def soft_cap(self, x: A, cap: float) -> A:
        """cap * tanh(x / cap), elementwise."""
        ...

    def rope(self, x: A, positions: A, spec: RopeSpec, heads: int) -> A:
        """Rotate x (T, heads * head_dim) by position."""
        ...

    def attend(
        self, q: A, k: A, v: A, layer: int, spec: AttentionSpec, sinks: W_contra | None = None
    ) -> A:
        """Store k and v in layer `layer` of the KV cache, then attend.

        q is (T, heads * head_dim), k and v (T, kv_heads * head_dim). The token at position p sees
        positions 0 to p of its own sequence, or the last `window` of them. `sinks` (heads,) are
        scores of no position (Xiao et al. 2023, arXiv:2309.17453, learned as in gpt-oss): each
        joins the sum of its head's softmax, and has no value. Returns (T, heads * head_dim).
        """
        ...

    def attend_stored(self, q: A, layer: int, spec: AttentionSpec) -> A:
        """Attend to the keys and values that :meth:`attend` has stored in layer `layer`.

        The same forward pass must have called `attend` with this layer before.
        """
        ...

    def head_linear(self, x: A, w: W_contra) -> A:
        """Multiply each head by a matrix of its own.

        `w` holds a matrix (n, k) for each head; :meth:`Loader.experts` makes such handles. Matrix i
        multiplies the first k elements of head i of x (T, heads * head_dim). Returns
        (T, heads * n).
        """
        ...

    def latent_attend(
        self, q_latent: A, q: A, latent: A, key: A, layer: int, spec: LatentSpec
    ) -> A:
        """Store `latent` and `key` in layer `layer` of the KV cache, then attend.

        A score is q_latent·latent + q_rotated·key, where q_latent is (T, heads * rank), and
        q_rotated are the last `rope_dim` elements of each head of q (T, heads * head_dim). latent
        is (T, rank), key (T, rope_dim). The token at position p sees positions 0 to p of its own
        sequence. Returns for each head the sum of latents, weighted by the softmax of its scores:
        (T, heads * rank).
        """
        ...

    def gated(self, gate: A, up: A, activation: str) -> A:
        """activation(gate) * up, elementwise.

        activation is "silu", "gelu", "gelu_erf", "relu", "clamped", "limited", "sigmoid",
        "identity", or "silu_to_7" or "silu_to_16", in which silu(gate) is at most that, and up
        within its range.
        "gelu_erf" is x / 2 * (1 + erf(x / sqrt(2))) (Hendrycks & Gimpel 2016), "gelu" its form with
        tanh, "relu" max(x, 0). "clamped" is GPT-OSS's: gate * sigmoid(1.702 * gate) *
        (up + 1), with gate limited to 7 and up to [-7, 7] before. "limited" is DeepSeek-V4's:
        "silu", with gate limited to 10 and up to [-10, 10] before.
        """
        ...

    def activate(self, x: A, activation: str) -> A:
        """activation(x), elementwise: "squared_relu", which is max(x, 0)**2, "tanh", or another.

        "sigmoid", "silu", "gelu", "gelu_erf" and "relu" are those of :meth:`gated`. "xielu_tail" is
        a part of xIELU (arXiv:2411.13010): 0 for x > 0, else exp(min(x, -1e-6)) - 1 - x.
        """
        ...

    def causal_conv(self, x: A, filters: W_contra, place: StatePlace, activation: str) -> A:
        """Convolution of each column of x (T, n) with the positions before.

        y[t, c] = activation(sum over i of w[c, i] * x[t - taps + 1 + i, c] + bias[c]), where
        positions before the sequence are zeros. `filters` are of :meth:`Loader.filters`.
        activation is "silu" or "identity". The state is the last taps - 1 rows of x:
        (taps - 1, n), the oldest first.
        """
        ...

    def step_size(self, x: A, bias: W_contra, least: float, most: float) -> A:
        """softplus(x + bias), limited to [least, most]; softplus(x) = ln(1 + exp(x))."""
        ...

    def decay(self, x: A, rates: W_contra) -> A:
        """exp(x * rate) of x (T, n); rates (m,) hold for n / m consecutive columns each."""
        ...

    def linear_attend(
        self,
        q: A,
        k: A,
        v: A,
        decay: A,
        strength: A,
        place: StatePlace,
        spec: LinearAttentionSpec,
        skip: W_contra | None = None,
    ) -> A:
        """Linear attention with a state that decays: (T, heads * value_dim).

        q and k are (T, key_heads * key_dim), v (T, heads * value_dim), strength (T, heads), and
        decay (T, heads), or (T, heads * key_dim) for a decay of each row. With the state S
        (key_dim, value_dim) of a head, one token computes::

            d = strength * (v - (decay * S)^T k)    if spec.corrects, else strength * v
            S = decay * S + k d^T
            y = S^T q + skip * v

        The gated delta rule (Yang et al. 2024, arXiv:2412.06464), Kimi's with a decay of each row
        (Kimi Team 2025, arXiv:2510.26692), and Mamba-2 without correction (Dao & Gu 2024,
        arXiv:2405.21060: k is B, q is C, v is x, strength is the step size, skip is D).
        """
        ...

    def selective_scan(
        self, q: A, k: A, v: A, step: A, rates: W_contra, skip: W_contra, place: StatePlace
    ) -> A:
        """Mamba's scan, whose state decays by a factor for each of its elements: (T, n).

        q and k are (T, m), v and step (T, n), skip is (n,). rates (n * m,) have those of a channel
        beside each other. With the state S (m, n), whose element (i, c) has rate r_ci, one token
        computes::

            S_ic = exp(step_c * r_ci) * S_ic + k_i * step_c * v_c
            y = S^T q + skip * v

        Gu & Dao 2023 (arXiv:2312.00752): k is B, q is C, v is x, rates are A, skip is D.
        """
        ...

    def token_shift(self, x: A, shares: W_contra, parts: int, place: StatePlace) -> A:
        """Each row of x (T, n) mixed with the row before it, in `parts` ways: (T, parts * n).

        Part i of row t is x[t] + shares[i] * (x[t - 1] - x[t]), where `shares` (parts * n,) are
        parts of n. The row before the sequence is zeros. The state is the last row of x.
        """
        ...

    def rwkv_attend(
        self, inputs: tuple[A, ...], weights: tuple[W_contra, ...], place: StatePlace, eps: float
    ) -> A:
        """RWKV-7's recurrence (Peng et al. 2025, arXiv:2503.14456), with what follows: (T, n).

        `inputs` are r, k, v, the decay w and the rate a, all (T, n). `weights` are vectors (n,):
        removal, replacement, bonus, and weights and biases of the norm. The state is a matrix S
        (size, size) for each head, so `place` tells the number of heads, n / size. One token
        computes in a head::

            u = removal * k;  u = u / max(|u|, 1e-12)
            k = k * (1 + (a - 1) * replacement)
            S = w * S - (a * u) (S^T u)^T + k v^T
            y = norm(S^T r) + sum(r * k * bonus) * v

        w scales the rows of S. The norm is :meth:`layer_norm` of a head, with `eps`.
        """
        ...

    def experts(self, x: A, logits: A, weights: ExpertWeights[W_contra], spec: ExpertSpec) -> A:
        """The weighted sum of the experts that router logits (T, count) choose for x (T, width).

        The weights are handles of :meth:`Loader.experts`. Returns (T, width).
        """
        ...

    def gate_rows(self, x: A, gate: A, activation: str = "sigmoid") -> A:
        """x (T, n) times activation(gate); gates (T, m) hold for n / m consecutive columns each.

        activation is "sigmoid" or "identity".
        """
        ...

    def mix_heads(self, x: A, factors: A, heads: int) -> A:
        """Sums of the heads of x (T, heads * n) with factors of each token: (T, m * n).

        Head i of the result is the sum over j of factors[:, i * heads + j] * head j of x, where
        factors are (T, m * heads). Heads of one element give a product of vectors.
        """
        ...

    def add(self, x: A, y: A) -> A:
        """Elementwise sum."""
        ...

    def take_rows(self, x: A, rows: A, count: int = 1) -> A:
        """x[rows] (R, n); with `count`, each of them and the rows after it: (R, count * n)."""
        ...

    def see(self, x: A, first: int = 0, *, adds: bool = False) -> A:
        """x (T, n), where rows of pictures replace those of their tokens, or are added to them.

        The step has these rows (:class:`heddle.step.Sight`); n columns from `first` on are used.
        """
        ...

    def take_columns(self, x: A, first: int, width: int, heads: int = 1) -> A:
        """A copy of columns `first` to `first` + width of each head of x: (T, heads * width).

        If `first` is 0, a head may have fewer columns: zeros follow them.
        """
        ...

    def apply(self, operation: Operation, *inputs: A) -> A:
        """The result of an operation that only one family has: (T, n)."""
        ...

    def join(self, x: A, y: A) -> A:
        """The columns of x (T, n), then those of y (T, m): (T, n + m)."""
        ...


class Loader(Protocol[W_co]):
    """Claims tensors of a checkpoint by canonical name, without `.weight`, and checks their shapes.

    Raises (all methods except `has`):
        ModelFileError: the tensor is missing or has another shape. Names the tensor.
        UnsupportedModelError: the executor has no kernel for its storage type.
    """

    def has(self, name: str) -> bool:
        """Whether the checkpoint has tensor `name`."""
        ...

    def linear(self, name: str, out_features: int, in_features: int) -> W_co:
        """A matrix (out_features, in_features), with its bias if the checkpoint has one."""
        ...

    def experts(self, name: str, count: int, out_features: int, in_features: int) -> W_co:
        """Stacked matrices (count, out_features, in_features), one for each expert.

        With biases (count, out_features) if the checkpoint has them.
        """
        ...

    def embedding(self, name: str, rows: int, width: int) -> W_co:
        """A lookup table (rows, width)."""
        ...

    def vector(self, name: str, width: int) -> W_co:
        """A float vector (width,)."""
        ...

    def filters(self, name: str, parts: Sequence[int], taps: int) -> tuple[W_co, ...]:
        """Filters (channels, taps) of a convolution, with biases if the checkpoint has them.

        The channels are divided: a handle for each number of channels in `parts`.
        """
        ...

    def filled(self, width: int, value: float = 1.0) -> W_co:
        """A vector (width,) of one value, for norms without weights."""
        ...

    def constants(self, name: str, width: int) -> tuple[float, ...]:
        """The values of a small vector (width,), for specs."""
        ...
