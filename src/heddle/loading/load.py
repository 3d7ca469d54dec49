"""Loads a model: makes its tokenizer, chat template and executor.

`load_model` imports the readers and the native module, so importing this module is cheap.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING

from heddle.doors import extensions, refer
from heddle.embedding import Pooling
from heddle.errors import OutOfMemoryError, UnsupportedModelError
from heddle.executor import WarmingExecutor
from heddle.hub_place import hub_place
from heddle.loading.find import find_model
from heddle.loading.loaded_model import LoadedModel, ModelInfo

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.config import EngineConfig
    from heddle.executor import Executor, ModelShape
    from heddle.executors.devices import Load
    from heddle.pictures import Sighted
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.mix import Mix
    from heddle.weights.progress import Progress
    from heddle.weights.sources import Found

_log = logging.getLogger(__name__)


def load_model(
    model: str | Path, config: EngineConfig, progress: Progress | None = None
) -> LoadedModel:
    """Find the model, fetch it if necessary, and make it ready to run on `config.device`.

    Raises: see :meth:`heddle.engine.Engine.load`.
    """
    from heddle.executors.devices import loader
    from heddle.models.build import family_of
    from heddle.weights.formats import open_checkpoint
    from heddle.weights.progress import Silent

    load = loader(config.device)  # first: refuse a wrong device before a download
    config.check()
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
    from heddle.loading.chat_templates import chat_template_of
    from heddle.loading.judge import judge_of
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
        config = _shared(checkpoint, tokenizer, config)
        executor = load(checkpoint, config, progress.update)
        judge = judge_of(checkpoint, tokenizer)  # its tensors have been checked by now
        eyes = _eyes_of(checkpoint, tokenizer, config, executor)
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
        judge,
        tuple(checkpoint.hyperparameters.get("labels", ())),  # type: ignore[arg-type]
        str(checkpoint.hyperparameters.get("problem_type", "")),
        checkpoint.hyperparameters.get("dense.activations") is not None,
        eyes,
    )


def _eyes_of(
    checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig, executor: Executor
) -> Sighted | None:
    """The eyes of a model; None if it has none, or no extension opens them. Raises as these."""
    try:
        for extension in extensions().values():
            if extension.eyes:
                eyes: Sighted | None = refer(extension.eyes)(
                    checkpoint, tokenizer, config, executor
                )
                return eyes
    except BaseException:
        executor.close()
        raise
    return None


def _shared(checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig) -> EngineConfig:
    """The settings with which the device loads a model, beside what extensions load for it."""
    for extension in extensions().values():
        for reference in extension.shares:
            config = refer(reference)(checkpoint, tokenizer, config)
    return config


def same_vocabulary(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether all tokens of two models mean the same."""
    return list(one.vocabulary_entries()) == list(other.vocabulary_entries())


def _pooling(config: EngineConfig, checkpoint: Checkpoint) -> Pooling | None:
    """The pooling from the settings, else from the checkpoint, else the mean.

    None for a model that was trained to rank documents. A model that pools by itself has its own.

    Raises:
        UnsupportedModelError: the checkpoint names another pooling, and the settings name none.
    """
    read = checkpoint.hyperparameters
    bends, own = read.get("dense.activations") is not None, read.get("pooling", "mean")
    if read.get("labels") and read.flag("classifier_last", False):
        return Pooling.LAST
    if read.get("labels") or (bends and own == "mean"):
        return Pooling.CLS  # of rows that the model has made of the whole text
    named = own if bends or config.pooling == "auto" else config.pooling
    if named == "rank":
        return None
    try:
        return Pooling(named)
    except ValueError:
        label = read.label("pooling")
        raise UnsupportedModelError(
            f"{label}: pooling {named!r} is not supported; supported: mean, cls, last, rank. Set"
            " pooling (--pooling) to mean, cls or last to use this model nevertheless",
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
