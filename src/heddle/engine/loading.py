"""Loads a model: finds it by name, and makes its tokenizer, chat template and executor.

`load_model` imports the readers and the native module, so importing this module is cheap.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from heddle.embedding import Pooling
from heddle.errors import (
    InvalidRequestError,
    OutOfMemoryError,
    UnsupportedModelError,
    UnsupportedParameterError,
)
from heddle.folders import cache_home
from heddle.hub_place import hub_place
from heddle.sampling_params import SamplingParams
from heddle.step import WarmingExecutor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from heddle.config import EngineConfig
    from heddle.embedding import EmbeddingParams
    from heddle.engine.reranking import Reranker
    from heddle.executors.registry import Load
    from heddle.hub_place import HubPlace
    from heddle.step import Executor, ModelShape
    from heddle.text.chat.template import ChatTemplate
    from heddle.text.parsing.reading import Reading
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.files import FileStamp
    from heddle.weights.mix import Mix
    from heddle.weights.progress import Progress
    from heddle.weights.sources import Found

_log = logging.getLogger(__name__)


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
        reranker: scores documents; None if the model cannot.
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
    reranker: Reranker | None = None

    def sampling_params(self, **given: Any) -> SamplingParams:
        """Sampling parameters: the values in `given`, else the model's defaults.

        Only this method applies the defaults of a model. Servers, streams and the offline library
        call it.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        return SamplingParams(**{**self.sampling_defaults, **given})

    def embeds_tokens(self, params: EmbeddingParams) -> bool:
        """Whether these parameters ask for a vector for each token."""
        return (params.pooling or self.pooling) is Pooling.NONE

    def check_one_vector(self, params: EmbeddingParams) -> None:
        """Check that these parameters ask for one vector for each text.

        Raises:
            UnsupportedParameterError: they ask for one for each token.
        """
        if self.embeds_tokens(params):
            raise UnsupportedParameterError(
                "pooling none gives a vector for each token, and this call returns one for each"
                " text. Set pooling to mean or last, or use the route /embedding or Engine.embed",
                param="pooling",
            )

    def judge(self) -> Reranker:
        """The model's reranker.

        Raises:
            UnsupportedParameterError: the model cannot judge documents.
        """
        if self.reranker is None:
            raise UnsupportedParameterError(
                f"{self.info.id} cannot rerank documents: its vocabulary or architecture is not"
                " that of Qwen3-Reranker. Load such a model, or compare embeddings",
                param="model",
            )
        return self.reranker

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
            messages: each with `role` and `content`, a string; in the form of OpenAI's API, but
                with arguments of calls as objects.
            tools: functions that the model may call, in the form of OpenAI's API.
            variables: further variables for the template, such as `enable_thinking`.
            add_generation_prompt: end with the beginning of the assistant's answer.
            continue_final_message: end where the content of the last message ends, with nothing
                after it.

        Raises:
            InvalidRequestError: the model has no chat template, or the template refuses the
                messages.
        """
        from heddle.text.chat.template import render_unfinished

        if self.template is None:
            raise InvalidRequestError(
                f"{self.info.id} has no chat template; send a prompt instead of messages",
                param="messages",
            )
        written, told = self.template.dialect.conversation(messages, tools)
        names = {**(variables or {}), "tools": told}
        if continue_final_message:
            return render_unfinished(self.template, written, **names)
        return self.template.render(written, add_generation_prompt=add_generation_prompt, **names)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> list[int]:
        """Token ids of messages. Arguments and errors are those of :meth:`chat_text`."""
        return self.tokenizer.encode_chat(self.chat_text(messages, **more))

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

    def close(self) -> None:
        """Free threads and memory. Idempotent."""
        self.executor.close()


def find_model(
    model: str, progress: Progress | None = None, place: HubPlace | None = None
) -> Found:
    """The files of a model that Heddle can run. Fetches them if necessary.

    Raises as :func:`heddle.weights.sources.find`. A model of the hub whose architecture is not
    supported is refused before its weights are fetched.
    """
    from heddle.models.registry import family_of
    from heddle.weights.sources import find

    return find(model, cache_home(), progress, place=place, check=family_of)


def check_supported(found: Found) -> None:
    """Check that Heddle can run a model, without reading its weights.

    Raises:
        UnsupportedModelError, ModelFileError: it cannot; says why.
    """
    from heddle.models.registry import build, family_of
    from heddle.weights.formats import open_checkpoint
    from heddle.weights.tensor_types import unsupported

    with open_checkpoint(found.path, found.base, family_of) as checkpoint:
        build(checkpoint)
        checkpoint.tokenizer()
        for name, tensor in checkpoint.tensors.items():
            if not tensor.type.is_supported:
                raise unsupported(tensor.type, name)


def load_model(
    model: str | Path, config: EngineConfig, progress: Progress | None = None
) -> LoadedModel:
    """Find the model, fetch it if necessary, and make it ready to run on `config.device`.

    Raises: see :meth:`heddle.engine.Engine.load`.
    """
    from heddle.executors.registry import check_ranks, loader
    from heddle.models.registry import family_of
    from heddle.weights.formats import open_checkpoint
    from heddle.weights.progress import Silent

    load = loader(config.device)  # first: refuse a wrong device before a download
    check_ranks(config)
    found = find_model(str(model), progress, hub_place(config))
    try:
        with open_checkpoint(found.path, found.base, family_of) as checkpoint:
            return _load(found, checkpoint, config, load, progress or Silent())
    except MemoryError as error:
        raise OutOfMemoryError(
            f"not enough memory to load {found.name}: {error or 'an allocation failed'}. Set fewer"
            " slots, a smaller kv_cache or batch_tokens, or take a smaller model",
            param="model",
        ) from error


def _warm_up(name: str, executor: Executor, progress: Progress) -> None:
    if not isinstance(executor, WarmingExecutor) or not executor.warm_ups:
        return
    progress.finish()
    progress.start(f"warming up {name}", executor.warm_ups, quick=True, unit="parts")
    try:
        executor.warm_up(progress.update)
    except BaseException:
        executor.close()
        raise


def _load(
    found: Found, checkpoint: Checkpoint, config: EngineConfig, load: Load, progress: Progress
) -> LoadedModel:
    from heddle.engine.chat_templates import chat_template_of
    from heddle.engine.reranking import reranker_of
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.mix import Mix

    mix = Mix.named(config.quantize)
    kept = mix.kept(checkpoint.tensors.values())
    if kept:
        _log.warning(
            "%s: matrices that are already quantised stay as they are: %s", checkpoint.path, kept
        )
    weights = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    progress.start(f"loading {found.name}", weights, quick=True)
    try:
        # The weights come last, so that errors of tokenizer and template show early.
        tokenizer = Tokenizer.of(checkpoint.tokenizer())
        template = chat_template_of(checkpoint, tokenizer, config)
        pooling = _pooling(config, checkpoint)
        sampling: dict[str, object] = {}
        if config.generation_config != "none":
            sampling = {**found.sampling, **checkpoint.recommended().checked()}
        config = _beside_draft(checkpoint, tokenizer, config)
        executor = load(checkpoint, config, progress.update)
        reranker = reranker_of(checkpoint, tokenizer)  # its tensor has been checked by now
        progress.update(weights)
        _warm_up(found.name, executor, progress)
    finally:
        progress.finish()
    return LoadedModel(
        _info(found.name, checkpoint, executor.shape, mix),
        executor.shape,
        tokenizer,
        template,
        executor,
        pooling,
        sampling,
        checkpoint.prompts,
        checkpoint.default_prompt,
        reranker,
    )


def _beside_draft(
    checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig
) -> EngineConfig:
    """The settings of a model. If it has a draft model, it leaves a part of `kv_cache` to it.

    Then both hold as many tokens. the extension `drafters` gives the draft model its part.
    """
    from heddle.executors.serving import position_elements
    from heddle.models.registry import build, family_of
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.formats import open_checkpoint

    if not config.draft or not config.kv_cache:
        return config
    found = find_model(config.draft, place=hub_place(config))
    with open_checkpoint(found.path, found.base, family_of) as small:
        if not same_vocabulary(Tokenizer.of(small.tokenizer()), tokenizer):
            return config  # the extension `drafters` refuses it, or leaves it out
        own, other = position_elements(build(checkpoint)), position_elements(build(small))
    return replace(config, kv_cache=config.kv_cache * own // max(1, own + other))


def same_vocabulary(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether all tokens of two models mean the same."""
    return list(one.vocabulary_entries()) == list(other.vocabulary_entries())


def _pooling(config: EngineConfig, checkpoint: Checkpoint) -> Pooling | None:
    """The pooling from the settings, else from the checkpoint, else the mean.

    None for a model that was trained to rank documents.

    Raises:
        UnsupportedModelError: the checkpoint names another pooling, and the settings name none.
    """
    read = checkpoint.hyperparameters
    named = read.get("pooling", "mean") if config.pooling == "auto" else config.pooling
    if named == "rank":
        return None
    try:
        return Pooling(named)
    except ValueError:
        label = read.label("pooling")
        raise UnsupportedModelError(
            f"{label}: pooling {named!r} is not supported; supported: mean, last, rank. Set pooling"
            " (--pooling) to mean or last to use this model nevertheless",
            param=label,
        ) from None


def _info(model_id: str, checkpoint: Checkpoint, shape: ModelShape, mix: Mix) -> ModelInfo:
    weights: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        weights[mix.type_of(tensor).name] += math.prod(tensor.shape)
    stamps = checkpoint.stamps
    return ModelInfo(
        id=model_id,
        path=checkpoint.path,
        architecture=checkpoint.architecture,
        context=shape.context,
        vocabulary=shape.vocabulary,
        parameters=weights.total(),
        file_bytes=sum(stamp.size for stamp in stamps.values()),
        quantisation=weights.most_common(1)[0][0],
        created=max(stamp.mtime_ns for stamp in stamps.values()) // 10**9,
        stamps=stamps,
    )
