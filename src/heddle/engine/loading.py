"""From the name of a model to everything an engine needs of it.

The readers and the native module are imported when a model is loaded, not when this module is.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.config import cache_home
from heddle.embedding import Pooling
from heddle.errors import InvalidRequestError, ModelFileError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from heddle.config import EngineConfig
    from heddle.models.base import ModelShape
    from heddle.step import Executor
    from heddle.text.chat.template import ChatTemplate
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.gguf import FileStamp, GGUFFile
    from heddle.weights.progress import Progress


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model is.

    Attributes:
        id: what callers name it by: its alias, or the file's name without `.gguf`.
        path: the file.
        architecture: its `general.architecture`.
        context: most tokens of a sequence as it is served here.
        vocabulary: how many token ids the model knows.
        parameters: weights in all.
        file_bytes: size of the file.
        quantisation: the storage type that most weights have.
        created: when the file was written, in seconds since 1970.
        stamp: the file's when it was loaded; None for a model that is not from a file.
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
    stamp: FileStamp | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        info: what it is.
        shape: its sizes; `context` as it is served here.
        tokenizer: text to token ids and back.
        template: messages to text; None if the file has no chat template.
        executor: runs its steps.
        pooling: of embeddings, where a request does not say.
    """

    info: ModelInfo
    shape: ModelShape
    tokenizer: Tokenizer
    template: ChatTemplate | None
    executor: Executor
    pooling: Pooling = Pooling.MEAN

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """A conversation as the model's chat template writes it.

        Args:
            messages: each with `role` and `content`, a string; as OpenAI's API has them, but with
                arguments of calls as objects.
            tools: functions that the model may call, as OpenAI's API has them.
            variables: more names for the template, such as `enable_thinking`.
            add_generation_prompt: end with the beginning of the assistant's answer.
            continue_final_message: end inside the last message, where its content ends; nothing
                is added then.

        Raises:
            InvalidRequestError: the model has no chat template, or it refuses the messages.
        """
        from heddle.text.chat.template import render_unfinished

        if self.template is None:
            raise InvalidRequestError(
                f"{self.info.id} has no chat template; send a prompt", param="messages"
            )
        written, told = self.template.dialect.conversation(messages, tools)
        names = {**(variables or {}), "tools": told}
        if continue_final_message:
            return render_unfinished(self.template, written, **names)
        return self.template.render(written, add_generation_prompt=add_generation_prompt, **names)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> list[int]:
        """Token ids of a conversation. Arguments and errors are those of :meth:`chat_text`."""
        return self.tokenizer.encode_chat(self.chat_text(messages, **more))

    def file_state(self) -> str | None:
        """Whether the file is still what was loaded: unchanged, changed or missing.

        Answers do not depend on it, since nothing is read from the file after loading. None for a
        model that is not from a file.
        """
        from heddle.weights.gguf import FileStamp

        if self.info.stamp is None:
            return None
        try:
            found = FileStamp.of(self.info.path.stat())
        except OSError:
            return "missing"
        return "unchanged" if found == self.info.stamp else "changed"

    def close(self) -> None:
        """Free threads and memory. Idempotent."""
        self.executor.close()


def load_model(
    model: str | Path, config: EngineConfig, progress: Progress | None = None
) -> LoadedModel:
    """Find the file, fetching it if need be, and make it ready to run on the CPU.

    Raises: see :meth:`heddle.engine.Engine.load`.
    """
    from heddle.weights.catalog import ALIASES
    from heddle.weights.gguf import GGUFFile
    from heddle.weights.progress import Silent
    from heddle.weights.sources import resolve

    name = str(model)
    path = resolve(name, cache_home(), progress)
    name = name if name in ALIASES else path.stem
    try:
        with GGUFFile.open(path) as file:
            return _load(name, file, config, progress or Silent())
    except MemoryError as error:
        raise OutOfMemoryError(
            f"there is not enough memory to load {name}: {error or 'an allocation failed'}; set"
            " fewer slots, a smaller kv_cache or batch_tokens, or take a smaller model",
            param="model",
        ) from error


def _load(name: str, file: GGUFFile, config: EngineConfig, progress: Progress) -> LoadedModel:
    from heddle.executors.cpu import executor as cpu
    from heddle.text.tokenizer.tokenizer import Tokenizer

    weights = sum(tensor.nbytes for tensor in file.tensors.values())
    progress.start(f"loading {name}", weights, quick=True)
    try:
        # What is small and may be refused comes before the weights.
        tokenizer = Tokenizer.from_metadata(file.metadata)
        template = _template(file.metadata, tokenizer)
        executor = cpu.load(file, config, progress.update)
        progress.update(weights)
    finally:
        progress.finish()
    info, pooling = _info(name, file, executor.shape), _pooling(config, file.metadata)
    return LoadedModel(info, executor.shape, tokenizer, template, executor, pooling)


_POOLING_TYPES = {1: Pooling.MEAN, 3: Pooling.LAST}
"""Of GGUF's `pooling_type`; its others, of the first token or of a ranking head, are no
embeddings of decoders."""


def _pooling(config: EngineConfig, metadata: Mapping[str, object]) -> Pooling:
    """What the setting says, else the file, else the mean."""
    if config.pooling != "auto":
        return Pooling(config.pooling)
    kind = metadata.get(f"{metadata['general.architecture']}.pooling_type")
    return _POOLING_TYPES.get(kind, Pooling.MEAN) if isinstance(kind, int) else Pooling.MEAN


def _template(metadata: Mapping[str, object], tokenizer: Tokenizer) -> ChatTemplate | None:
    from heddle.text.chat.template import ChatTemplate

    key = "tokenizer.chat_template"
    source = metadata.get(key)
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelFileError(f"{key} must be a string, got {source!r}", field=key)
    bos, eos = (
        "" if token is None else tokenizer.token_text(token)
        for token in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return ChatTemplate(source, bos, eos)


def _info(model_id: str, file: GGUFFile, shape: ModelShape) -> ModelInfo:
    weights: Counter[str] = Counter()
    for tensor in file.tensors.values():
        weights[tensor.type.name] += math.prod(tensor.shape)
    return ModelInfo(
        id=model_id,
        path=file.path,
        architecture=str(file.metadata["general.architecture"]),
        context=shape.context,
        vocabulary=shape.vocabulary,
        parameters=weights.total(),
        file_bytes=file.stamp.size,
        quantisation=weights.most_common(1)[0][0],
        created=file.stamp.mtime_ns // 10**9,
        stamp=file.stamp,
    )
