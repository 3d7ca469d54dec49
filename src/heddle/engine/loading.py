"""From the name of a model to everything an engine needs of it.

The readers and the native module are imported when a model is loaded, not when this module is.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.config import cache_home
from heddle.embedding import Pooling
from heddle.errors import InvalidRequestError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from heddle.config import EngineConfig
    from heddle.executors.registry import Load
    from heddle.step import Executor, ModelShape
    from heddle.text.chat.template import ChatTemplate
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.files import FileStamp
    from heddle.weights.progress import Progress


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model is.

    Attributes:
        id: what callers name it by: its alias, or the name of the folder, or of the file without
            `.gguf`.
        path: the file or folder.
        architecture: its name in the format of the files.
        context: most tokens of a sequence as it is served here.
        vocabulary: how many token ids the model knows.
        parameters: weights in all.
        file_bytes: size of the files with tensors.
        quantisation: the storage type that most weights have.
        created: when the files were written, in seconds since 1970.
        stamps: of the files with tensors when they were loaded; empty for a model that is not from
            files.
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
        """Whether the files are still what was loaded: unchanged, changed or missing.

        Answers do not depend on it, since nothing is read from the files after loading. None for a
        model that is not from files.
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


def load_model(
    model: str | Path, config: EngineConfig, progress: Progress | None = None
) -> LoadedModel:
    """Find the file, fetching it if need be, and make it ready to run on `config.device`.

    Raises: see :meth:`heddle.engine.Engine.load`.
    """
    from heddle.executors.registry import loader
    from heddle.weights.catalog import ALIASES
    from heddle.weights.formats import open_checkpoint
    from heddle.weights.progress import Silent
    from heddle.weights.sources import resolve

    load = loader(config.device)  # a wrong name is refused before anything is fetched
    name = str(model)
    path = resolve(name, cache_home(), progress)
    name = name if name in ALIASES else path.name.removesuffix(".gguf")
    try:
        with open_checkpoint(path) as checkpoint:
            return _load(name, checkpoint, config, load, progress or Silent())
    except MemoryError as error:
        raise OutOfMemoryError(
            f"there is not enough memory to load {name}: {error or 'an allocation failed'}; set"
            " fewer slots, a smaller kv_cache or batch_tokens, or take a smaller model",
            param="model",
        ) from error


def _load(
    name: str, checkpoint: Checkpoint, config: EngineConfig, load: Load, progress: Progress
) -> LoadedModel:
    from heddle.text.tokenizer.tokenizer import Tokenizer

    weights = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    progress.start(f"loading {name}", weights, quick=True)
    try:
        # What is small and may be refused comes before the weights.
        tokenizer = Tokenizer.of(checkpoint.tokenizer())
        template = _template(checkpoint, tokenizer)
        executor = load(checkpoint, config, progress.update)
        progress.update(weights)
    finally:
        progress.finish()
    info, pooling = _info(name, checkpoint, executor.shape), _pooling(config, checkpoint)
    return LoadedModel(info, executor.shape, tokenizer, template, executor, pooling)


def _pooling(config: EngineConfig, checkpoint: Checkpoint) -> Pooling:
    """What the setting says, else the checkpoint, else the mean."""
    if config.pooling != "auto":
        return Pooling(config.pooling)
    return Pooling(checkpoint.hyperparameters.get("pooling", "mean"))


def _template(checkpoint: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate | None:
    from heddle.text.chat.template import ChatTemplate

    if checkpoint.chat_template is None:
        return None
    bos, eos = (
        "" if token is None else tokenizer.token_text(token)
        for token in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return ChatTemplate(checkpoint.chat_template, bos, eos)


def _info(model_id: str, checkpoint: Checkpoint, shape: ModelShape) -> ModelInfo:
    weights: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        weights[tensor.type.name] += math.prod(tensor.shape)
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
