"""The CPU executor: packs a model's weights, records its forward pass, runs plans natively.

`load` is the way in. A step is one native call without the GIL; before it, a plan's integers are
laid out as arrays, after it, picks become results.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle import _native
from heddle.cores import usable_cores
from heddle.embedding import EmbeddingParams
from heddle.errors import (
    ConfigError,
    EngineFailedError,
    NothingAllowedError,
    StepAbandonedError,
    UnsupportedModelError,
)
from heddle.executors.cpu.batch import Layout, StateSum, ints
from heddle.executors.cpu.grammar_masks import GrammarMasks
from heddle.executors.cpu.limits import measure, model_work
from heddle.executors.cpu.lowering import lower
from heddle.executors.cpu.memory import available_bytes, check_memory
from heddle.executors.cpu.readout import non_finite, pooled, scored
from heddle.executors.cpu.weights import CpuLoader
from heddle.executors.graph.recording import Input, Node, RecordingOps
from heddle.models.ops import Batch
from heddle.models.registry import build
from heddle.step import NO_RULES, PAGE_TOKENS, Deferred, Failed, Sampled, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from heddle.config import EngineConfig
    from heddle.errors import HeddleError
    from heddle.models.base import ModelShape
    from heddle.models.decoder import Decoder
    from heddle.roofline import Limits
    from heddle.step import Binding, Chunk, StepPlan, TokenPieces, TokenRules, TokenSequences
    from heddle.types import SamplingParams
    from heddle.weights.checkpoint import Checkpoint


_LEAST_ROWS = 16
"""Rows of logits that the program has room for at least: where hundreds are scored, the output
matrix is read once for as many. Of a vocabulary of 152,000 they take 10 MB."""


def load(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Callable[[int], None] = lambda packed: None,
) -> CpuExecutor:
    """Pack the weights of `checkpoint` and make it ready to run.

    `progress` is called with the bytes packed so far. Nothing is read from the files afterwards.

    Raises:
        ModelFileError, UnsupportedModelError: the file cannot be served.
        ConfigError: a setting does not fit the model or the machine.
        OutOfMemoryError: this machine has too little for the model with these settings.
    """
    model = build(checkpoint, config.context)
    pages = _pages(checkpoint, config, model.shape)
    runtime = _runtime(config)
    loader = CpuLoader(
        checkpoint, runtime, allow_nonfinite=config.allow_nonfinite, progress=progress
    )
    weights = model.load(loader)
    checkpoint.check_unchanged()
    return CpuExecutor(model, weights, runtime, config, loader, pages)


def _runtime(config: EngineConfig) -> _native.Runtime:
    threads = config.threads or usable_cores()
    if config.isa != "auto" and config.isa not in _native.isa_levels():
        here = ", ".join(_native.isa_levels())
        raise ConfigError(f"isa {config.isa!r} does not run on this machine, which has {here}")
    try:
        return _native.Runtime(threads, config.isa)
    except RuntimeError as error:
        raise ConfigError(f"{error}; set fewer", param="threads") from error


class CpuExecutor:
    """Runs plans on the CPU; see `heddle.step.Executor`.

    Attributes:
        shape: the model's, with `context` cut to the configured one.
        work: what its steps cost.
        pages, page_bytes: how many KV pages there are, and the bytes of one, all layers.
        compute_seconds: wall time that steps took so far; see `heddle.step.Executor`.
    """

    def __init__(
        self,
        model: Decoder,
        weights: Any,
        runtime: _native.Runtime,
        config: EngineConfig,
        loader: CpuLoader,
        pages: int,
    ) -> None:
        context = _context(config, model.shape)
        self.shape = dataclasses.replace(model.shape, context=context)
        self.isa = runtime.isa
        self.threads = runtime.threads
        self.weight_bytes = loader.matmul_bytes
        self._held_bytes = loader.arena.allocated
        self._kept = (loader.arena, weights)  # the program holds bare pointers into both
        self.kv_type = config.kv_type
        self._cache = _kv_cache(config, self.shape, pages)
        self.pages, self.page_bytes = self._cache.pages, self._cache.page_bytes
        self.compute_seconds = 0.0
        max_rows = _most_rows(config)
        try:
            self._program = _native.Program(runtime, self._cache, config.batch_tokens, max_rows)
        except ValueError as error:
            raise UnsupportedModelError(f"the model cannot be run on a CPU: {error}") from error
        # No sequence is longer than the cache, whatever context a file claims.
        positions = min(context, self._cache.pages * PAGE_TOKENS)
        self._logits = self._record(model, weights, positions)
        self._program.sample(self._logits)
        self._samplers: dict[int, _native.Sampler] = {}
        self._masks = GrammarMasks()
        self._sums: dict[int, StateSum] = {}  # of slots whose sequences want an embedding

    def _record(self, model: Decoder, weights: Any, positions: int) -> int:
        ops = RecordingOps()
        batch: Batch[Node] = Batch(
            tokens=Input((), 1, False, "tokens"),
            positions=Input((), 1, False, "positions"),
            rows=Input((), 1, True, "rows"),
        )
        states = model.forward(ops, weights, batch)
        logits = model.logits(ops, weights, states)
        position_bytes = self.page_bytes / PAGE_TOKENS / self.shape.layers
        self.work = model_work(ops.nodes, self.weight_bytes, position_bytes)
        try:
            return lower(ops.nodes, states, logits, self._program, positions)
        except ValueError as error:
            raise UnsupportedModelError(f"the model cannot be run on a CPU: {error}") from error

    @property
    def page_format(self) -> str:
        arithmetic = f"{_program_digest()} {_trigonometry_digest()}"
        return f"cpu {self.kv_type} {PAGE_TOKENS} {self.page_bytes} {arithmetic}"

    def read_page(self, page: int) -> memoryview:
        content = np.empty(self.page_bytes, np.uint8)
        self._cache.read(page, content)
        return content.data

    def write_page(self, page: int, content: memoryview) -> None:
        self._cache.write(page, np.frombuffer(content, np.uint8))

    @property
    def summary(self) -> str:
        kv_cache = self.pages * self.page_bytes
        return (
            f"{self.threads} threads, {self.isa}, weights {self._held_bytes / 1e6:,.0f} MB,"
            f" KV cache {kv_cache / 1e6:,.0f} MB in {self.kv_type}"
            f" ({self.pages * PAGE_TOKENS:,} tokens)"
        )

    def measure_limits(self) -> Limits:
        return measure(self.threads, self.isa, self.weight_bytes)

    def set_profiling(self, on: bool) -> None:
        """Count the time of instructions from now on, or no longer. Call it while no step runs."""
        self._program.set_profiling(on)

    def take_profile(self) -> dict[str, float]:
        """Seconds per kind of instruction since the last call, of the thread that calls execute."""
        seconds: dict[str, float] = {}
        for kind, nanoseconds in self._program.take_profile():
            seconds[kind] = seconds.get(kind, 0.0) + nanoseconds * 1e-9
        return seconds

    def execute(self, plan: StepPlan, meanwhile: Callable[[], None] | None = None) -> StepResult:
        for binding in plan.bindings:
            self._bind(binding)
        layout = Layout.of(plan, self._sums)
        sampling = [chunk for chunk in plan.chunks if chunk.sample]
        samplers = [self._samplers[chunk.slot] for chunk in sampling]
        fill = self._masks.filling({c.slot: self._samplers[c.slot] for c in sampling})
        try:
            for copy in plan.copies:
                self._cache.copy(copy.source, copy.target)
            read = self._program.run(
                *layout.arrays(), samplers, meanwhile, fill, layout.scored_rows(), layout.pooled
            )
        except ValueError as error:
            raise EngineFailedError(f"the step was refused: {error}") from error
        self.compute_seconds = self._program.seconds
        if read is None:
            raise StepAbandonedError("the step was abandoned")
        picks, scores = read
        sampled = tuple(map(self._sampled, sampling, samplers, picks))
        return StepResult(sampled, scored(plan, scores), pooled(plan, self._sums))

    def _bind(self, binding: Binding) -> None:
        if isinstance(binding.params, EmbeddingParams):
            self._sums[binding.slot] = StateSum(self._program.pooled_width)
        else:
            self._samplers[binding.slot] = _bound_sampler(binding, binding.params)
            self._masks.bind(binding)

    def _sampled(
        self, chunk: Chunk, sampler: _native.Sampler, pick: _native.Pick
    ) -> Sampled | Failed | Deferred:
        late = self._masks.late(chunk.slot)
        if late is not None:
            return Deferred(chunk.slot, late)
        token, logprob, top = pick
        failure = self._masks.failure(chunk.slot) or _failure(token, chunk)
        if failure is not None:
            return Failed(chunk.slot, failure)
        self._masks.observe(chunk.slot, token)
        known = logprob if sampler.logprobs >= 0 else math.nan
        return Sampled(chunk.slot, token, known, tuple(top), sampler.mu)

    def logits(self, plan: StepPlan) -> npt.NDArray[np.float32]:
        """Run a plan without sampling; logits (R, vocabulary) of the chunks with `sample` set."""
        layout = Layout.of(plan, {})
        self._program.run(*layout.arrays(), [])
        return self._program.copy(self._logits, len(layout.rows))

    def abandon(self) -> None:
        program = vars(self).get("_program")  # none once closed
        if program is not None:
            program.abandon()

    def close(self) -> None:
        """Let go of all that has threads or memory; what it tells of itself stays. Idempotent."""
        for name in ("_program", "_cache", "_kept", "_samplers", "_masks", "_sums"):
            vars(self).pop(name, None)


def _program_digest() -> str:
    """Stands for the program as it is installed: a change anywhere may be one of arithmetic."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256(Path(_native.__file__).read_bytes())
    for source in sorted(package.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _trigonometry_digest() -> str:
    """Stands for NumPy's cosines and sines, which rope tables are made of.

    Last places differ between its versions and, since it uses what the processor has, machines.
    """
    angles = np.arange(1 << 14) * 0.7
    return hashlib.sha256(np.cos(angles).tobytes() + np.sin(angles).tobytes()).hexdigest()


def _context(config: EngineConfig, shape: ModelShape) -> int:
    if config.context > shape.context:
        raise ConfigError(
            f"context {config.context} is more than the model's {shape.context}", param="context"
        )
    return config.context or shape.context


def _pages(checkpoint: Checkpoint, config: EngineConfig, shape: ModelShape) -> int:
    """How many KV pages there will be: what `kv_cache` bytes hold, or what the slots can fill.

    Raises:
        OutOfMemoryError: weights and pages need more memory than the machine has left.
    """
    if config.kv_type == "q8_0" and shape.head_dim % 32:
        raise ConfigError(
            f"kv_type q8_0 needs heads of a multiple of 32 elements, this model's have"
            f" {shape.head_dim}; set kv_type to f16",
            param="kv_type",
        )
    page_bytes = _native.KvCache.bytes_of_page(*_page_sizes(config, shape))
    fillable = config.slots * -(-_context(config, shape) // PAGE_TOKENS)
    weights = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    weights += _step_bytes(config, shape)
    check_memory(weights, config.kv_cache and min(config.kv_cache, fillable * page_bytes))
    free = available_bytes()
    budget = config.kv_cache or (free - weights if weights < free else free) // 2
    pages = min(fillable, budget // page_bytes)
    if pages < 1:
        raise ConfigError(
            f"kv_cache of {budget} bytes does not hold one page of {page_bytes} bytes",
            param="kv_cache",
        )
    return pages


def _step_bytes(config: EngineConfig, shape: ModelShape) -> int:
    """About what a step's activations and logits take: as much as 16 rows of the stream a token."""
    rows = _most_rows(config)
    return 4 * (config.batch_tokens * 16 * shape.width + rows * shape.vocabulary)


def _most_rows(config: EngineConfig) -> int:
    return min(max(config.slots, _LEAST_ROWS), config.batch_tokens)


def _page_sizes(config: EngineConfig, shape: ModelShape) -> tuple[str, int, int, int]:
    return config.kv_type, shape.layers, shape.kv_heads, shape.head_dim


def _kv_cache(config: EngineConfig, shape: ModelShape, pages: int) -> _native.KvCache:
    sizes = _page_sizes(config, shape)
    page_bytes = _native.KvCache.bytes_of_page(*sizes)
    try:
        return _native.KvCache(*sizes, pages)
    except ValueError as error:
        raise UnsupportedModelError(f"the model cannot be run on a CPU: {error}") from error
    except MemoryError as error:
        raise ConfigError(
            f"cannot map a KV cache of {pages * page_bytes} bytes; set a smaller kv_cache",
            param="kv_cache",
        ) from error


def _failure(token: int, chunk: Chunk) -> HeddleError | None:
    """The error of what a sampler gives in place of a token."""
    if token >= 0:
        return None
    if token == _NOTHING_LEFT:
        return NothingAllowedError(
            f"after {chunk.start + len(chunk.tokens)} tokens there is none that may come next: what"
            " the grammar, or the text to go on with, allows is excluded by bad_words; send fewer"
            " of them",
            param="bad_words",
        )
    return non_finite(chunk)


def _bound_sampler(binding: Binding, params: SamplingParams) -> _native.Sampler:
    sampler = make_sampler(params, binding.rules)
    sampler.observe_prompt(ints(binding.prompt))
    sampler.observe_output(ints(binding.output))
    if binding.mu is not None:
        sampler.mu = binding.mu
    return sampler


_NOTHING_LEFT = -2
"""What a sampler gives in place of a token when all are forbidden."""

_SAMPLER_FIELDS = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_p",
    "min_p",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat_tau",
    "mirostat_eta",
    "min_tokens",
)
"""Fields that the native parameters have under the same name and meaning."""


def make_sampler(params: SamplingParams, rules: TokenRules = NO_RULES) -> _native.Sampler:
    """The native sampler of `params`; its seed must be drawn already.

    Raises:
        ValueError: the seed is missing.
    """
    if params.seed is None:
        raise ValueError("params.seed must be drawn before a sampler is made")
    native = _native.SamplerParams()
    for name in _SAMPLER_FIELDS:
        setattr(native, name, getattr(params, name))
    native.top_k = max(0, params.top_k)
    native.top_n_sigma = max(0.0, params.top_n_sigma)
    native.mirostat = params.mirostat == 2
    native.order = [getattr(_native.Stage, stage.name) for stage in params.samplers]
    native.bias = dict(params.logit_bias)
    native.bad_sequences = rules.bad_sequences
    native.end_tokens = rules.end_tokens
    native.forbidden = rules.forbidden
    if rules.breakers is not None:
        native.dry_breakers = _breakers(rules.breakers)
    if rules.pieces is not None:
        native.pieces = _pieces(rules.pieces)
    native.seed = params.seed % 2**64
    native.logprobs = -1 if params.logprobs is None else params.logprobs
    return _native.Sampler(native)


@lru_cache(maxsize=2)
def _pieces(pieces: TokenPieces) -> _native.Pieces:
    """The native form, once for all requests of a model."""
    return _native.Pieces(pieces.texts, pieces.ends)


@lru_cache(maxsize=8)
def _breakers(breakers: TokenSequences) -> _native.Breakers:
    """The native form, once for all requests that share them: they may be thousands."""
    return _native.Breakers(breakers.sequences)
