"""A model that is ready to run, and facts about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heddle.embedding import Pooling
from heddle.errors import BlindModelError, InvalidRequestError, UnsupportedParameterError
from heddle.sampling_params import SamplingParams, brought_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from heddle.embedding import EmbeddingParams
    from heddle.executor import Executor, ModelShape
    from heddle.loading.judge import Judge
    from heddle.pictures import Illustrated, Laid, Sighted
    from heddle.text.chat.template import ChatTemplate
    from heddle.text.parsing.reading import Reading
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.files import FileStamp


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a model.

    Attributes:
        id: name in requests: its alias, or the name of the folder, or of the file without `.gguf`.
        path: the file or folder.
        architecture: name of the architecture in the format of the files.
        context: most tokens of a sequence, as served here.
        vocabulary: how many token ids the model knows.
        parameters: number of weights.
        file_bytes: size of the files with tensors.
        quantisation: the tensor type of most weights.
        created: when the files were written, in seconds since 1970.
        stamps: stamps of the files when they were loaded; empty for a model without files.
    """

    id: str
    path: Path
    architecture: str
    context: int
    vocabulary: int
    parameters: int
    file_bytes: int
    quantisation: str
    created: int
    stamps: Mapping[Path, FileStamp] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        info: facts about it.
        shape: its sizes, with the served context.
        tokenizer: turns text into token ids and back.
        template: turns messages into text; None if the model has no chat template.
        executor: runs its steps.
        pooling: default pooling of embeddings; None: requests have to name one.
        sampling_defaults: default sampling parameters of requests, as keywords of
            `SamplingParams`.
        prompts: texts that go before inputs of embeddings, by name.
        default_prompt: the text that goes before inputs without a named prompt.
        documents_judge: scores documents; None if the model cannot.
        labels: names of a classifier's classes, whose logits are the vector of a text; empty: the
            model is no classifier. A cross-encoder has one.
        problem_type: what these logits mean, in the words of `transformers`; may be empty.
        bends_vectors: whether an activation follows the pooling, so that no other one is possible.
        eyes: what sees pictures; None: the model is blind.
    """

    info: ModelInfo
    shape: ModelShape
    tokenizer: Tokenizer
    template: ChatTemplate | None
    executor: Executor
    pooling: Pooling | None = Pooling.MEAN
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    documents_judge: Judge | None = None
    labels: tuple[str, ...] = ()
    problem_type: str = ""
    bends_vectors: bool = False
    eyes: Sighted | None = None

    def sampling_params(self, **given: Any) -> SamplingParams:
        """Sampling parameters: the values in `given`, else the model's defaults.

        Only this method applies the defaults of a model. Servers, streams and the offline library
        call it.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        values = {**self.sampling_defaults, **given}
        if values.keys().isdisjoint(brought_parameters()):
            return SamplingParams(**values)
        return SamplingParams.by_name(**values)

    def embeds_tokens(self, params: EmbeddingParams) -> bool:
        """Whether these parameters ask for a vector for each token."""
        return (params.pooling or self.pooling) is Pooling.NONE

    def check_one_vector(self, params: EmbeddingParams) -> None:
        """Check that these parameters ask for one vector for each text.

        Raises:
            UnsupportedParameterError: they ask for one for each token, or the model is a
                classifier, whose logits are no embedding.
        """
        if self.labels and params.unit_length:
            raise UnsupportedParameterError(
                f"{self.info.id} is a classifier and makes no embeddings; use /classify, or /score"
                " and LLM.score if it compares texts",
                param="model",
            )
        if self.embeds_tokens(params):
            raise UnsupportedParameterError(
                "pooling none gives a vector for each token, and this call returns one for each"
                " text. Set pooling to mean, cls or last, or use the route /embedding or"
                " Engine.embed",
                param="pooling",
            )

    def judge(self) -> Judge:
        """What scores documents.

        Raises:
            UnsupportedParameterError: the model cannot judge documents.
        """
        if self.documents_judge is None:
            raise UnsupportedParameterError(
                f"{self.info.id} cannot rerank documents: it is no cross-encoder, and its"
                " vocabulary or architecture is not that of Qwen3-Reranker. Load such a model, or"
                " compare embeddings",
                param="model",
            )
        return self.documents_judge

    def embedding_text(self, text: str, prompt_name: str | None) -> str:
        """The text to embed: the named prompt of the model's files, or the default one, and `text`.

        Raises:
            InvalidRequestError: the files have no prompt of that name.
        """
        if prompt_name is None:
            return self.default_prompt + text
        if prompt_name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise InvalidRequestError(
                f"{self.info.id} has no prompt named {prompt_name!r}; it has: {known}",
                param="prompt_name",
            )
        return self.prompts[prompt_name] + text

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Render messages with the model's chat template.

        Args:
            messages: each with `role` and `content`, a string or a list of parts of the types text
                and image; in the form of OpenAI's API, but with arguments of calls as objects. The
                text has the mark of the model's eyes for each image.
            tools: functions that the model may call, in the form of OpenAI's API.
            variables: further variables for the template, such as `enable_thinking`.
            add_generation_prompt: end with the beginning of the assistant's answer.
            continue_final_message: end where the content of the last message ends, with nothing
                after it. If it has reasoning and no content, end inside its reasoning.

        Raises:
            InvalidRequestError: the model has no chat template, the template refuses the messages,
                it does not show a picture, or the last message cannot be continued.
            BlindModelError: there are pictures, and the model has no eyes.
        """
        from heddle.text.chat.unfinished import render_unfinished

        if (template := self.template) is None:
            raise InvalidRequestError(
                f"{self.info.id} has no chat template; send a prompt instead of messages",
                param="messages",
            )
        dialect = template.dialect
        illustrations, given = None, variables or {}
        if any(isinstance(one.get("content"), list) for one in messages):
            from heddle.text.chat.illustrations import Illustrations

            illustrations = Illustrations.of(messages)
            messages, given = (
                illustrations.messages,
                {**given, "stand_ins": illustrations.stand_ins},
            )
            mark = self.sight().mark if illustrations.stand_ins else ""
        written, told = dialect.conversation(messages, tools)
        names = {**given, dialect.form.tools_variable: told}

        def render(changed: Sequence[Mapping[str, Any]], *, opens: bool) -> str:
            written, _ = dialect.conversation(changed, tools)
            return template.render(written, add_generation_prompt=opens, **names)

        if continue_final_message:
            text = render_unfinished(render, messages, dialect)
        else:
            text = template.render(written, add_generation_prompt=add_generation_prompt, **names)
        if illustrations is None or not illustrations.stand_ins:
            return text
        return illustrations.finish(text, mark)

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], **more: Any
    ) -> list[int] | Illustrated:
        """The prompt of messages, whose images are pictures.

        Arguments and errors are those of :meth:`chat_text`.
        """
        text = self.chat_text(messages, **more)
        return self.prompt_of(text, messages)

    def prompt_of(
        self, text: str, messages: Sequence[Mapping[str, Any]]
    ) -> list[int] | Illustrated:
        """The prompt of a text that :meth:`chat_text` has made of messages."""
        from heddle.pictures import Illustrated
        from heddle.text.chat.illustrations import pictures_in

        if pictures := pictures_in(messages):
            return Illustrated(text, tuple(pictures))
        return self.tokenizer.encode_chat(text)

    def sight(self, param: str = "messages") -> Sighted:
        """What sees pictures, such as that of the field `param`.

        Raises:
            BlindModelError: the model has no eyes.
        """
        if self.eyes is None:
            raise BlindModelError(
                f"{self.info.id} sees no pictures, and {param} has one. Load a model with eyes, or"
                " send text alone",
                param=param,
            )
        return self.eyes

    def lay(self, prompt: Illustrated) -> Laid:
        """The prompt as token ids and looks.

        Raises:
            InvalidRequestError: the model is blind, the text has not one mark for each picture, or
                a picture cannot be seen.
        """
        return self.sight().lay(prompt)

    def reading(self, prompt: str) -> Reading:
        """How to read the answer to a prompt that :meth:`chat_text` has made."""
        assert self.template is not None, "the template wrote the prompt"
        return self.template.dialect.reading(prompt)

    def file_state(self) -> str | None:
        """Compare the files with the loaded model: "unchanged", "changed" or "missing".

        None for a model without files. Answers do not depend on the state: the engine reads nothing
        from the files after loading.
        """
        from heddle.weights.files import FileStamp

        try:
            found = {path: FileStamp.of(path.stat()) for path in self.info.stamps}
        except OSError:
            return "missing"
        if not found:
            return None
        return "unchanged" if found == self.info.stamps else "changed"

    def abandon(self) -> None:
        """End the step or the work of the eyes in flight soon. Any thread may call this."""
        if self.eyes is not None:
            self.eyes.encoder.abandon()
        self.executor.abandon()

    def close(self) -> None:
        """Free threads and memory. Idempotent."""
        if self.eyes is not None:
            self.eyes.encoder.close()
        self.executor.close()
