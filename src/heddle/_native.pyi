"""Heddle's native core. Arrays must be C-contiguous; bad shapes and indices are ValueError."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int32]
_Floats = NDArray[np.float32]
_Doubles = NDArray[np.float64]
Pick = tuple[int, float, list[tuple[int, float]]]
Score = tuple[float, int, list[tuple[int, float]]]

def isa_levels() -> list[str]:
    """Instruction levels this machine can run, fastest first."""

def tensor_types() -> list[tuple[str, int, int, int, int, bool]]:
    """The native table of tensor types that matmuls read.

    A row has: name, GGUF number, values of a block, its bytes in a file, its bytes in memory, and
    whether activations are quantised for it.
    """

def has_kernel(file_type: int) -> bool:
    """Whether matmuls read this GGUF tensor type."""

def has_encoder(file_type: int) -> bool:
    """Whether floats can be quantised to this GGUF tensor type."""

def quantise(
    runtime: Runtime,
    type: int,
    raw: FileBytes | _Bytes,
    stored: int,
    rows: int,
    columns: int,
    importance: _Floats,
) -> tuple[_Bytes, int]:
    """Quantise a matrix of floats.

    Args:
        type: type of the result.
        raw: the matrix, of the float type `stored`.
        importance: weight of each column's error (columns,); empty: all equal.

    Returns:
        The rows in the file's form (n,), and a row with a value that is not finite; -1 if there is
        none.

    Raises:
        ValueError: nothing of type `stored` can be quantised to `type`.
        RuntimeError: the file ends before the matrix does, or cannot be read.
    """

def uniform(seed: int, index: int, stream: int = 0) -> float:
    """The random number in [0, 1) of one token. Stream 0 chooses tokens; stream 1 is for XTC."""

class Runtime:
    """Compute threads (the caller included) and their kernels.

    With `processors`, one for each thread, each thread but the caller stays on its own.

    Raises:
        ValueError: a count or the level is wrong, or the system refuses a processor.
        RuntimeError: the system refuses a thread.
    """

    def __init__(self, threads: int, isa: str, processors: Sequence[int] = ()) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def multiplication(self) -> str:
        """The multiply instruction of the level's quantised matmuls."""
    def read_rate(self, bytes: int, seconds: float) -> float:
        """Bytes per second at which the threads read a buffer of that size.

        The best of at least five passes that take `seconds` together.
        """
    def multiply_rate(self, seconds: float) -> float:
        """Integer multiply-adds per second of all threads, from registers.

        The best of at least five passes that take `seconds` together.
        """
    def barrier_seconds(self) -> float:
        """Seconds that it costs the threads to wait for one another once."""

class Arena:
    """Memory that packed matrices live in."""

    def __init__(self) -> None: ...
    @property
    def allocated(self) -> int:
        """Bytes handed out."""

class FileBytes:
    """`size` bytes of an open file from `offset` on; `file` is its descriptor."""

    def __init__(self, file: int, offset: int, size: int) -> None: ...

class Matrix:
    """A matrix (rows, columns) packed from its file bytes.

    Raises RuntimeError if the file ends before the matrix does, or cannot be read.
    """

    def __init__(
        self,
        arena: Arena,
        runtime: Runtime,
        type: int,
        raw: FileBytes | _Bytes,
        rows: int,
        columns: int,
        bias: _Floats,
        stored: int | None = None,
    ) -> None:
        """`stored` is the type of `raw` if its floats are to be quantised to `type`."""
    @property
    def bytes(self) -> int: ...
    @property
    def non_finite_row(self) -> int:
        """A row with an infinite or NaN weight or block scale; -1 if there is none."""
    @property
    def quantised(self) -> bool:
        """Whether matmuls with this matrix read quantised activations."""

class KvCache:
    """Pages of keys and values of one type, f16 or q8_0."""

    def __init__(
        self,
        type: str,
        layers: int,
        kv_heads: int,
        head_dim: int,
        pages: int,
        has_values: bool = True,
    ) -> None:
        """Without `has_values`, keys are latents, and values are their first elements."""
    @staticmethod
    def bytes_of_page(
        type: str, layers: int, kv_heads: int, head_dim: int, has_values: bool = True
    ) -> int: ...
    def copy(self, source: int, target: int) -> None:
        """Copy the content of page `source` to page `target`."""
    def read(self, page: int, bytes: _Bytes) -> None:
        """Copy a page's bytes into `bytes`."""
    def write(self, page: int, bytes: _Bytes) -> None:
        """Copy `bytes`, as `read` gave them, into a page."""
    @property
    def pages(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...

class FixedStates:
    """States of recurrent layers, `bytes` each, a multiple of 64."""

    def __init__(self, count: int, bytes: int) -> None: ...
    def clear(self, state: int) -> None: ...
    def copy(self, source: int, target: int) -> None: ...
    def read(self, state: int, bytes: _Bytes) -> None: ...
    def write(self, state: int, bytes: _Bytes) -> None: ...

class Breakers:
    """DRY's breakers: token sequences that end a repetition."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None: ...

class TokenPieces:
    """The bytes of all tokens, and which of them end an output."""

    def __init__(self, texts: Sequence[bytes], ends: Sequence[int]) -> None: ...

class Engram:
    """An open engram: which tokens follow an n-gram, and how often; see docs/guides/engrams.md.

    Any thread may call all methods.
    """

    def __init__(self, file: int, vocabulary: int = 0) -> None:
        """
        Args:
            file: descriptor of the open file. The engram keeps a duplicate.
            vocabulary: number of token ids. Others are never predicted. 0 takes the number of the
                header; a file of version 1 has none.

        Raises:
            ValueError: the file is no sound engram. The text is "field: reason".
            RuntimeError: the file cannot be read.
        """

    @property
    def version(self) -> int: ...
    @property
    def orders(self) -> tuple[int, int]:
        """Fewest and most tokens of an n-gram."""
    @property
    def entries(self) -> int:
        """Number of n-grams."""
    @property
    def vocabulary(self) -> int: ...
    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the vocabulary; 32 zero bytes in version 1."""
    @property
    def counts(self) -> tuple[int, int, int]:
        """N-grams that were looked up, that the filter stopped, and that were found."""
    def predict(self, tokens: Sequence[int]) -> list[tuple[int, float]]:
        """Predict what follows `tokens`: (token, probability), falling, at most 64.

        The longest n-gram that ends `tokens` and is in the table predicts. Only the last 16 tokens
        matter. Empty if the table has no such n-gram.
        """

def sampler_numbers() -> list[str]:
    """The names of the numbers that `SamplerParams` takes."""

class SamplerParams:
    """The parameters of a sampler."""

    def __init__(self, numbers: Mapping[str, float], order: Sequence[str]) -> None:
        """
        Args:
            numbers: values by name in SamplingParams; missing ones get its defaults.
            order: values of `heddle.sampling_params.Stage`.

        Raises:
            ValueError: a name is not that of a number or stage.
        """

    def set_engram(
        self,
        tables: Sequence[tuple[Engram, float]],
        alpha: float,
        literal: bool,
        opening: Sequence[int],
        closing: Sequence[int],
    ) -> None:
        """Set the bias of engrams; see docs/guides/engrams.md."""
    dry_breakers: Breakers
    pieces: TokenPieces
    bias: dict[int, float]
    bad_sequences: Sequence[Sequence[int]]
    end_tokens: Sequence[int]
    forbidden: Sequence[int]
    seed: int
    logprobs: int
    reports_chain: bool

class Sampler:
    """One request's sampler; see heddle.extensions.reference.sampler."""

    def __init__(self, params: SamplerParams) -> None: ...
    @property
    def mu(self) -> float | None:
        """Mirostat's bound in bits; None without mirostat."""
    @mu.setter
    def mu(self, value: float) -> None: ...
    @property
    def logprobs(self) -> int: ...
    def edit(self, *edits: tuple[bytes, bytes]) -> None:
        """From now on, edit the logits by a mask and a bias; see `heddle.token_rules.LogitEdit`.

        Edit i is for the pick after i guesses. A step picks after no more guesses than it has edits
        for; without edits, all tokens are allowed everywhere.
        """
    def observe_prompt(self, tokens: _Ints) -> None: ...
    def observe_output(self, tokens: _Ints) -> None: ...
    def pick(self, isa: str, logits: _Floats) -> Pick:
        """Pick (token, logprob, top) from logits (vocabulary,), and observe the token.

        The token is -1 if a logit is NaN or infinite, and -2 if all tokens are forbidden.
        """

class Lookup:
    """Guesses the next tokens of a text from earlier occurrences of its end; native/lookup.h."""

    def append(self, tokens: _Ints) -> None: ...
    def guess(self, most: int) -> tuple[list[int], int]:
        """Up to `most` tokens, and how many tokens before them occurred earlier (2 to 16, or 0)."""
    def __len__(self) -> int: ...

class Adapter:
    """Low-rank changes of a program's matrices."""

    @property
    def bytes(self) -> int: ...

class Step:
    """A step that a program computes. Dropping this object waits for the step's end."""

    def finish(self) -> tuple[list[list[Pick]], list[Score]] | None:
        """Let the samplers run, and compute with the other threads until the step has ended.

        Returns:
            Picks of each sampler, one more than the guesses that it confirmed; the token is -1 if a
            logit is NaN or infinite. And scores, one
            per scored row: log probability, rank, and the likeliest tokens; the rank is 0 if a
            logit is NaN or infinite. None if the step was abandoned.

        Raises:
            MemoryError, RuntimeError: a compute thread failed. The program can run other steps.
        """

class Program:
    """A recorded model: instructions over numbered buffers; see native/program.h."""

    def __init__(
        self,
        runtime: Runtime,
        caches: Sequence[KvCache],
        max_tokens: int,
        max_rows: int,
        states: FixedStates | None = None,
    ) -> None:
        """`caches` hold one group of layers each, `states` those of recurrent layers.

        The program keeps them alive.
        """
    def buffer(self, width: int, per_row: bool) -> int: ...
    def rope_table(self, dim: int, interleaved: bool, positions: int) -> int:
        """An empty table with room for `positions`; returns its number."""
    def extend_rope(self, table: int, cosine: _Floats, sine: _Floats) -> None:
        """Add the next positions: (positions, dim / 2). Call it while no step runs."""
    def position_bias(self, heads: int, positions: int, values: _Floats) -> int:
        """A table (heads, 2 * positions - 1) by distance, the lowest first; returns its number."""
    def embed(self, table: Matrix, out: int, by_position: bool = False, first: int = 0) -> None:
        """Look rows up in the matrix, from `first` on. The program keeps the matrix alive."""
    def embed_segments(self, table: Matrix, separator: int, out: int) -> None: ...
    def embed_previous(self, table: Matrix, start: int, out: int) -> None: ...
    def mean_rows(self, in_: int, out: int) -> None: ...
    def norm(self, in_: int, weight: _Floats, eps: float, out: int, quantise: bool) -> None: ...
    def layer_norm(
        self, in_: int, weight: _Floats, bias: _Floats, eps: float, out: int, quantise: bool
    ) -> None: ...
    def quantise(self, in_: int) -> None: ...
    def matmul(self, in_: int, parts: Sequence[tuple[Matrix, int]], accumulate: bool) -> None:
        """The program keeps the matrices alive."""
    def head_matmul(self, in_: int, matrices: Sequence[Matrix], out: int) -> None:
        """Matrix i multiplies the first columns of head i, as many as it has."""
    def gated(self, gate: int, up: int, activation: str, out: int, quantise: bool) -> None: ...
    def gate_rows(self, x: int, gate: int, out: int, activation: str = "sigmoid") -> None: ...
    def mix_heads(self, x: int, factors: int, heads: int, out: int) -> None: ...
    def experts(
        self,
        in_: int,
        logits: int,
        out: int,
        gate: Sequence[Matrix],
        up: Sequence[Matrix],
        down: Sequence[Matrix],
        *,
        used: int,
        scoring: str,
        normalised: bool,
        scale: float,
        groups: int,
        groups_used: int,
        group_best: int,
        selection_bias: _Floats,
        activation: str,
        expert_scales: _Floats | None = None,
        weighs_input: bool = False,
    ) -> None: ...
    def norm_heads(self, in_: int, weight: _Floats, eps: float, heads: int) -> None: ...
    def scale(self, in_: int, factor: float) -> None: ...
    def soft_cap(self, in_: int, cap: float) -> None: ...
    def rope(
        self, in_: int, table: int, heads: int, first: int = 0, axes: Sequence[int] = ()
    ) -> None:
        """Rotate each head in place, from its element `first` on.

        With `axes`, one for each pair, the place of a pair's axis turns it, not the position.
        """
    def see(self, in_: int, first: int, adds: bool) -> None:
        """Columns of rows of pictures replace those of their tokens, or are added to them."""
    def store_kv(self, k: int, v: int, layer: int, cache: int = 0) -> None:
        """`layer` counts within the cache with index `cache`."""
    def attend(
        self,
        q: int,
        layer: int,
        heads: int,
        scale: float,
        window: int,
        out: int,
        quantise: bool,
        cache: int = 0,
        causal: bool = True,
        soft_cap: float = 0.0,
        sinks: _Floats | None = None,
        bias: int = -1,
        aligned: bool = False,
        runs: int = 0,
    ) -> None:
        """See AttentionSpec in heddle.models.ops; `sinks` are (heads,)."""
    def store_latents(self, latent: int, key: int, layer: int, cache: int) -> None: ...
    def latent_attend(
        self,
        q_latent: int,
        q: int,
        layer: int,
        heads: int,
        scale: float,
        out: int,
        quantise: bool,
        cache: int,
    ) -> None:
        """See `latent_attend` in heddle.models.ops."""
    def add(self, x: int, y: int, out: int) -> None: ...
    def take_rows(self, in_: int, out: int) -> None: ...
    def take_columns(self, in_: int, first: int, out: int, heads: int = 1) -> None: ...
    def activate(self, in_: int, activation: str, quantise: bool = False) -> None: ...
    def step_size(self, in_: int, bias: _Floats, least: float, most: float) -> None: ...
    def decay(self, in_: int, rates: _Floats, out: int) -> None: ...
    def conv(
        self,
        in_: int,
        *,
        taps: int,
        filters: _Floats,
        bias: _Floats | None,
        place: int,
        silu: bool,
        out: int,
    ) -> None:
        """See `Ops.causal_conv`. `filters` are (taps, width); `place` is in floats."""
    def compress(
        self,
        x: int,
        gate: int,
        *,
        ratio: int,
        overlaps: bool,
        bias: _Floats,
        place: int,
        out: int,
    ) -> None:
        """Weighted means of runs of `ratio` positions. `bias` is (ratio, width)."""
    def attend_compressed(
        self,
        q: int,
        *,
        layer: int,
        cache: int,
        heads: int,
        scale: float,
        window: int,
        ratio: int,
        sinks: _Floats,
        out: int,
    ) -> None:
        """Attend to a window, and to compressed positions."""
    def stream_weights(
        self,
        in_: int,
        *,
        streams: int,
        base: _Floats,
        scales: _Floats,
        turns: int,
        eps: float,
        out: int,
    ) -> None:
        """The weights by which streams are mixed; see native/stream_instructions.cpp."""
    def collapse(self, streams: int, weights: int, out: int) -> None: ...
    def expand(self, streams: int, result: int, weights: int, out: int) -> None: ...
    def keep_listed(self, in_: int, table: _Ints, listed: int, out: int) -> None:
        """Let only the columns that the table has for a token take part."""
    def linear_attend(
        self,
        q: int,
        k: int,
        v: int,
        decay: int,
        strength: int,
        *,
        heads: int,
        key_heads: int,
        key_dim: int,
        value_dim: int,
        corrects: bool,
        tiled: bool,
        place: int,
        skip: _Floats | None,
        out: int,
    ) -> None:
        """See `Ops.linear_attend`. `place` is in floats."""
    def selective_scan(
        self,
        q: int,
        k: int,
        v: int,
        step: int,
        *,
        rates: _Floats,
        skip: _Floats,
        place: int,
        out: int,
    ) -> None:
        """See `Ops.selective_scan`. `place` is in floats."""
    def token_shift(self, in_: int, shares: _Floats, place: int, out: int) -> None:
        """See `Ops.token_shift`. `place` is in floats."""
    def rwkv_attend(
        self,
        r: int,
        k: int,
        v: int,
        decay: int,
        rate: int,
        removal: _Floats,
        replacement: _Floats,
        bonus: _Floats,
        norm: _Floats,
        norm_bias: _Floats,
        heads: int,
        place: int,
        eps: float,
        out: int,
    ) -> None:
        """See `Ops.rwkv_attend`. `place` is in floats."""
    def join(self, x: int, y: int, out: int) -> None:
        """The columns of x, then those of y."""
    def pool(self, states: int) -> None:
        """Add the states of pooled rows to their sums. Later instructions skip these rows."""
    def sample(self, logits: int) -> None:
        """Make picks and scores from logits; the last instruction."""
    def adapter(
        self,
        changes: Sequence[
            tuple[Matrix, Matrix, Matrix | None, Sequence[float], Sequence[float], bool]
        ],
    ) -> Adapter:
        """An adapter, from (matrix, a, b, scales, gains, is_lookup) of each change.

        The product of the matrix W (n, k) with x gains b @ (scales * (a @ x)) + gains * (W @ x).
        Without gains the list is empty; those of experts have none. Without b, a (n, k) takes the
        place of W. For look-ups a is transposed: rows of a table (n, k) gain b @ (scales * a[row]),
        with b (k, rank). Any thread may call this.

        Raises:
            ValueError: no instruction reads a matrix so, or a change does not fit it.
        """
    def begin(
        self,
        ids: _Ints,
        positions: _Ints,
        spans: _Ints,
        pages: _Ints,
        rows: _Ints,
        samplers: list[Sampler],
        may_sample: bool = True,
        scored: _Ints | None = None,
        pooled: Sequence[tuple[int, int, _Doubles]] = (),
        guesses: Sequence[int] = (),
        adapted: Sequence[tuple[int, int, Adapter, float]] = (),
        places: _Ints | None = None,
        runs: _Ints | None = None,
        seen: Sequence[tuple[int, _Floats]] = (),
        piece: tuple[int, int] = (0, -1),
        part: tuple[int, int] = (0, 1),
    ) -> Step:
        """Start a step. The threads of the runtime compute it, and `Step.finish` joins them.

        Spans (S, 3 + 2 * caches) are (first row, tokens, first position) and, for each cache,
        (index of the first page in `pages`, number of that page). Scored rows (n, 3) are (token
        row, target token, how many of the likeliest to report). `pooled` has (first token row,
        rows, sums); the states of the rows are added to the sums (pooled_width,), one row after
        the other. Without `may_sample` no sampler runs before `Step.finish`. A sampler with n of
        `guesses` has n + 1 of the `rows`, of consecutive tokens; the last n tokens are guesses.
        `adapted` has (first token row, rows, adapter, factor) of rows that adapters change.
        Places (tokens, axes) turn rotations of several axes. Runs (tokens, 2 * kinds) are
        positions [begin, end) that attention sees whole. `seen` has (first token row, rows of a
        picture). A `piece` computes the stages from its first number to its second one, or to the
        end; what the pieces before it computed stays in the buffers. Of a piece that ends before
        the last stage, a call may compute `part` (number, of how many).

        Raises:
            ValueError: the step is refused. Nothing was computed.
            RuntimeError: another step of this runtime has not been finished.
        """
    def abandon(self) -> None:
        """End the step in flight soon, and every later step at once.

        Any thread may call it. It cannot be undone.
        """
    @property
    def pooled_width(self) -> int:
        """Width of the states that can be pooled; 0 if none can."""
    @property
    def token_stages(self) -> int:
        """Stages over tokens. A piece of a step ends before one of them, or with the step."""
    @property
    def barriers(self) -> int:
        """How often the threads wait for one another in a step of one token."""
    @property
    def seconds(self) -> float:
        """Wall time of all steps, as if each caller had called `finish` right after `begin`.

        The time between the two calls counts less the caller's share of the threads. Conversion of
        arguments and results is not part of the time, nor are refused steps.
        """
    def copy(self, buffer: int, rows: int) -> _Floats:
        """The first rows of a buffer after the last step."""
    def write(self, buffer: int, values: _Floats) -> None:
        """Set the first rows of a buffer that no instruction writes, for the next step."""
    def take_profile(self) -> list[tuple[str, float]]:
        """(kind, nanoseconds of the calling thread) per instruction since the last call."""
    def set_profiling(self, on: bool) -> None: ...
