"""LLM: generates complete outputs for prompts, in a few lines of Python."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from heddle.closing import Closing
from heddle.config import DEFAULT_MODEL, EngineConfig
from heddle.embedding import EmbeddingParams, Pooling
from heddle.engine.engine import Engine
from heddle.engine.progress import batch_progress
from heddle.engine.streaming.blocking import Collector
from heddle.errors import InvalidRequestError
from heddle.loading.judge import paired, probability
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams
from heddle.sent_pictures import with_pictures
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from heddle.engine.requests.request import Params, Prompt, Ticket
    from heddle.outputs import Delta, Output

T = TypeVar("T")
P = TypeVar("P", SamplingParams, EmbeddingParams)
Adapters: TypeAlias = "str | Sequence[str | Mapping[str, Any]]"


class LLM(Closing):
    """A loaded model for programs that want complete outputs. Several threads may use it.

    ::

        with LLM("smollm2-135m") as llm:
            for output in llm.generate(["The sea is", "The sky is"], SamplingParams(max_tokens=20)):
                print(output.text)

    Attributes:
        engine: the engine that does the work; it can also stream.
    """

    def __init__(
        self, model: str | Path | Engine = DEFAULT_MODEL, config: EngineConfig | None = None
    ) -> None:
        """Load a model, or take over a running engine. Raises as `Engine.load`."""
        if not isinstance(model, Engine):
            model = Engine.load(model, config or EngineConfig())
        self.engine = model
        # Every prompt waits for a free place, so a batch of any length never overloads the queue.
        self._places = threading.Semaphore(self.engine.config.slots + self.engine.config.queue)

    def generate(
        self,
        prompts: str | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora: Adapters | None = None,
        progress: bool | None = None,
    ) -> list[Output]:
        """Generate one output per prompt, in the order of the prompts.

        As many prompts run at once as the engine has slots.

        Args:
            prompts: texts or lists of token ids, any number of them, or one text.
            params: one for all prompts, or one for each. None: the model's defaults; to change
                some of them, pass `llm.sampling_params(max_tokens=20)`.
            lora: adapters for all prompts, in place of those in `params`: a name, or a list of
                names and of objects as `{"name": "poems", "scale": 0.5}`.
            progress: show a bar on standard error; None shows it for 16 prompts or more, on a
                terminal.

        Raises:
            HeddleError: a prompt was refused or failed. The other prompts are cancelled.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        params = self.sampling_params() if params is None else params
        if isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        if len(params) != len(prompts):
            entries = counted(len(params), "entry", "entries")
            raise InvalidRequestError(
                f"params has {entries} for {counted(len(prompts), 'prompt')}; give one for all"
                " or one for each",
                param="params",
            )
        asked = [_adapted(one, lora) for one in params]
        return self._run(prompts, asked, Collector.wait, progress)

    def sampling_params(self, **given: Any) -> SamplingParams:
        """Sampling parameters: the values in `given`, else the model's defaults.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        return self.engine.model.sampling_params(**given)

    def embed(
        self,
        prompts: str | Iterable[Prompt],
        pooling: Pooling | str | None = None,
        *,
        prompt_name: str | None = None,
        lora: Adapters | None = None,
        progress: bool | None = None,
    ) -> NDArray[np.float32]:
        """Embeddings of the prompts: float32 (n, width of the model), one row of length 1 each.

        Args:
            prompts: texts or lists of token ids, any number of them, or one text.
            pooling: "mean" of the last hidden states of all tokens, "cls": that of the first token,
                or "last": that of the last token. None: the engine's setting. :meth:`Engine.embed`
                takes "none", too.
            prompt_name: name of a text of the model's files that goes before each prompt, such as
                "query". None: the files' default, mostly no text.
            lora: as for :meth:`generate`.
            progress: as for :meth:`generate`.

        Raises:
            UnsupportedParameterError: the pooling is "none", so that a prompt has many vectors.
            HeddleError: a prompt was refused or failed. The other prompts are cancelled.
        """
        import numpy as np

        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        params = EmbeddingParams(pooling, prompt_name=prompt_name)  # type: ignore[arg-type]
        self.engine.model.check_one_vector(params)
        params = _adapted(params, lora)
        embeddings = self._run(prompts, [params] * len(prompts), Collector.wait_embedding, progress)
        vectors = [np.frombuffer(one.vector, np.float32) for one in embeddings]
        width = self.engine.model.shape.width
        return np.stack(vectors) if vectors else np.empty((0, width), np.float32)

    def rerank(
        self, query: str, documents: Iterable[str], instruction: str | None = None
    ) -> list[float]:
        """Scores in [0, 1] of how well each document answers the query, in their order.

        The model is a cross-encoder, or it answers "yes" or "no" as Qwen3-Reranker was trained to.

        Args:
            query: the text of the search.
            documents: any number of texts.
            instruction: what the documents are judged by; None: Qwen3-Reranker's own instruction. A
                cross-encoder takes none.

        Raises:
            UnsupportedParameterError: the model cannot judge documents.
            HeddleError: a document was refused or failed. The other documents are cancelled.
        """
        return self.score([query], documents, instruction)

    def score(
        self,
        queries: str | Iterable[str],
        documents: str | Iterable[str],
        instruction: str | None = None,
    ) -> list[float]:
        """Scores in [0, 1] of pairs of a query and a document, as for :meth:`rerank`.

        Args:
            queries: one text for all documents, or as many as there are documents.
            documents: one text for all queries, or as many as there are queries.
            instruction: as for :meth:`rerank`.

        Raises:
            InvalidRequestError: the numbers of queries and documents differ.
            UnsupportedParameterError: the model cannot judge documents.
            HeddleError: a pair was refused or failed. The other pairs are cancelled.
        """
        judge = self.engine.model.judge()
        pairs = paired(queries, documents)
        prompts = [judge.prompt(query, document, instruction) for query, document in pairs]
        vectors = self._run(prompts, [judge.params] * len(prompts), Collector.wait_embedding, None)
        return [probability(judge.logit(one.vector)) for one in vectors]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        lora: Adapters | None = None,
    ) -> Output:
        """Generate the answer to messages with at least `role` and `content`.

        A content is a text, or a list of parts for a model that sees pictures::

            [{"type": "image", "image": "cat.png"}, {"type": "text", "text": "What is it?"}]

        An image is an image of Pillow, the bytes of its file, or a path.

        `lora` names adapters as for :meth:`generate`.

        Of an answer of gpt-oss, `text` is the text without reasoning. Texts of other models are
        complete.

        Raises:
            InvalidRequestError: the model has no chat template, the template refuses the messages,
                or an image cannot be read.
            BlindModelError: there are images, and the model sees none.
            HeddleError: as :meth:`generate`.
        """
        model = self.engine.model
        text = model.chat_text(messages)
        prompt, reading = model.prompt_of(text, with_pictures(messages)), model.reading(text)
        if not reading.frames:
            return self.generate([prompt], params, lora=lora)[0]
        shown = reading.controls(model.tokenizer.control_id)
        params = replace(params or model.sampling_params(), shown_specials=shown)
        [output] = self.generate([prompt], params, lora=lora)
        cut = output.finish is FinishReason.LENGTH
        return replace(output, text=reading.read(output.text, cut=cut).text)

    def close(self) -> None:
        """Close the engine. Idempotent."""
        self.engine.close()

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[Params],
        result: Callable[[Collector], T],
        progress: bool | None,
    ) -> list[T]:
        """The results of the prompts, in the order of the prompts."""
        tickets: list[Ticket] = []
        collectors: list[Collector] = []
        try:
            with batch_progress(len(prompts), progress) as count:
                for prompt, chosen in zip(prompts, params, strict=True):
                    collectors.append(Collector(getattr(chosen, "deadline", 0.0)))
                    tickets.append(self._submit(prompt, chosen, collectors[-1], count))
                return [result(collector) for collector in collectors]
        except BaseException:
            for ticket in tickets:
                ticket.cancel()
            raise

    def _submit(
        self,
        prompt: Prompt,
        params: Params,
        collector: Collector,
        count: Callable[[], None],
    ) -> Ticket:
        """Submit when a place is free. At its end, the request gives the place back."""

        def sink(delta: Delta) -> None:
            if delta.finish is not None:
                self._places.release()
                count()
            collector(delta)

        self._places.acquire()
        try:
            return self.engine.submit(prompt, params, sink)
        except BaseException:
            self._places.release()
            raise


def _adapted(params: P, lora: Adapters | None) -> P:
    """The parameters with these adapters; None: with those that they name."""
    if lora is None:
        return params
    for named in SamplingParams.by_name(lora=lora).extensions:
        params = params.having(named)
    return params
