"""Opens the eyes of a model: finds their files, loads them, and says how pictures are prepared."""

from __future__ import annotations

import logging
import math
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ConfigError, ModelFileError, OutOfMemoryError, UnsupportedModelError
from heddle.executors.seeing import SeeingExecutor
from heddle.extensions.vision.files import eyes_of
from heddle.extensions.vision.kinds import kind_of
from heddle.extensions.vision.processors import fields
from heddle.extensions.vision.processors.any_shape import (
    AnyShape,
    glm4v_of,
    glm4v_of_gguf,
    qwen_vl_of,
    qwen_vl_of_gguf,
)
from heddle.extensions.vision.processors.gemma3 import gemma3_of, gemma3_of_gguf
from heddle.extensions.vision.processors.gemma4 import Gemma4, gemma4_of, gemma4_of_gguf
from heddle.extensions.vision.processors.idefics3 import idefics3_of, idefics3_of_gguf
from heddle.extensions.vision.processors.internvl import internvl_of, internvl_of_gguf
from heddle.extensions.vision.processors.lfm2_vl import lfm2_vl_of, lfm2_vl_of_gguf
from heddle.extensions.vision.processors.llama4 import llama4_of, llama4_of_gguf
from heddle.extensions.vision.processors.llava import llava_of, llava_of_gguf
from heddle.extensions.vision.processors.llava_next import llava_next_of, llava_next_of_gguf
from heddle.extensions.vision.processors.pixtral import pixtral_of, pixtral_of_gguf
from heddle.extensions.vision.settings import EyesSettings
from heddle.extensions.vision.sighting import ModelEyes
from heddle.loading.digests import digest_of_files
from heddle.process_memory import machine_memory
from heddle.weights.huggingface.json_files import read_optional_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.config import EngineConfig
    from heddle.executor import Executor
    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.extensions.vision.kinds.kind import Kind
    from heddle.extensions.vision.processors.prepared import Processor
    from heddle.text.tokenizer.tokenizer import Tokenizer
    from heddle.weights.checkpoint import Checkpoint

    Make = Callable[[Mapping[str, object]], Processor]

_log = logging.getLogger(__name__)

_PROCESSORS: Mapping[str, tuple[Make, Make]] = {
    "idefics3": (idefics3_of, idefics3_of_gguf),
    "gemma3": (gemma3_of, gemma3_of_gguf),
    "gemma4": (gemma4_of, gemma4_of_gguf),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), (qwen_vl_of, qwen_vl_of_gguf)),
    "glm4v": (glm4v_of, glm4v_of_gguf),
    **dict.fromkeys(("pixtral", "mistral3"), (pixtral_of, pixtral_of_gguf)),
    "internvl": (internvl_of, internvl_of_gguf),
    "lfm2_vl": (lfm2_vl_of, lfm2_vl_of_gguf),
    "llava": (llava_of, llava_of_gguf),
    "llava_next": (llava_next_of, llava_next_of_gguf),
    "llama4": (llama4_of, llama4_of_gguf),
}
"""The makers of processors by the kind of eyes: from values of a folder, and of a GGUF file."""

_LEAST_PATCHES = 4096
"""Patches of a pass at least, so that several tiles share it. More do not make it faster."""


def eyes_of_model(
    checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig, executor: Executor
) -> ModelEyes | None:
    """The eyes of a model; None if it has none, or if it runs on a device that does not see.

    Raises:
        ConfigError: the setting `mmproj` names a file for a folder, or the device does not see.
        ModelSourceError, ModelFileError, UnsupportedModelError: the eyes cannot be loaded.
        OutOfMemoryError: there is too little memory.
    """
    settings = config.of(EyesSettings)
    if not isinstance(executor, SeeingExecutor):
        if settings.mmproj not in ("auto", "none"):
            raise ConfigError(
                f"mmproj is {settings.mmproj}, but models on device {config.device} see no"
                " pictures; use --device cpu or torch without ranks, or leave the setting out",
                param="mmproj",
            )
        return None
    eyes = eyes_of(checkpoint, settings.mmproj)
    if eyes is None:
        return None
    with closing(eyes):
        try:
            return _opened(eyes, checkpoint, tokenizer, config, executor)
        except UnsupportedModelError as error:
            if settings.mmproj not in ("auto", "none"):
                raise
            _log.warning("%s: it sees no pictures: %s", checkpoint.path, error.message)
            return None


def _opened(
    eyes: EyesCheckpoint,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    config: EngineConfig,
    executor: SeeingExecutor,
) -> ModelEyes:
    settings = config.of(EyesSettings)
    kind, processor = kind_of(eyes), _processor(eyes)
    if isinstance(processor, AnyShape | Gemma4):
        processor = processor.limited(settings.image_tokens)
    _check_tiles(kind, processor)
    row = _id_of(tokenizer, processor.row_token)
    blank = row
    if isinstance(processor, Gemma4):
        blank = _id_of(tokenizer, processor.blank_token)
    whole = _are_whole(eyes, checkpoint)
    if whole:
        _check_window(checkpoint, processor)
    _check_memory(eyes)
    most = _most_patches(eyes, kind, processor, settings.image_tokens)
    return ModelEyes(
        *(kind, processor, executor.make_encoder(kind.tower, eyes, most), tokenizer),
        *(row, blank),
        settings.image_cache,
        summary=_summary(eyes),
        most_patches=most,
        has_axes=checkpoint.hyperparameters.get("rope.sections") is not None,
        whole=whole,
        files=_files(eyes, config),
    )


def _id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.control_id(token)
    if found is None:
        raise UnsupportedModelError(
            f"the tokenizer has no token {token}, which stands for pictures"
        )
    return found


def _files(eyes: EyesCheckpoint, config: EngineConfig) -> str:
    """What says whether other files are these. Other processes need to know it, too, for the disk.

    Raises:
        ModelFileError: a file has changed since it was opened.
    """
    if config.prefix_cache_dir:
        with suppress(OSError):
            return digest_of_files(eyes.stamps)
    return repr(sorted(eyes.stamps.items()))


def _are_whole(eyes: EyesCheckpoint, text: Checkpoint) -> bool:
    """Whether the tokens of a picture see one another in the text model."""
    if eyes.architecture != "gemma4":
        return eyes.architecture == "gemma3"
    said = eyes.hyperparameters.get("whole")
    if said is None:  # GGUF files do not say: models whose layers have own inputs do not
        return not text.hyperparameters.count("layer_input_width")
    return bool(said)


def _check_window(text: Checkpoint, processor: Processor) -> None:
    """Check that the tokens of a picture are within the window of layers, if layers have one.

    Raises:
        UnsupportedModelError: a picture may have more tokens.
    """
    window = text.hyperparameters.count("window")
    most = processor.most if isinstance(processor, Gemma4) else processor.count(1, 1)
    if 0 < window < most:
        raise UnsupportedModelError(
            f"a picture may have {most} tokens that see one another, but some layers see"
            f" {window} positions only. For Gemma 4, set image_tokens to {window} or less",
            param="image_tokens",
        )


def _check_tiles(kind: Kind, processor: Processor) -> None:
    """Check that the eyes can see what the processor makes, by means of a small picture.

    Raises:
        ModelFileError: the sizes of the processor contradict those of the eyes.
    """
    side = 64
    prepared = processor.prepare(np.zeros((side, side, 3), np.uint8))
    kind.scenes(prepared.tiles)
    if isinstance(processor, Gemma4):
        assert kind.cutter.positions is not None, "they are sums of vectors"
        kind.cutter.positions(1, processor.most * kind.cutter.merge)
    made = kind.count(prepared.tiles, prepared.kept)
    named = prepared.text.count(processor.row_token)
    if made != named:
        raise ModelFileError(
            f"the eyes make {made} rows of a picture of {side} x {side} pixels, and the processor"
            f" has {named} tokens for them; their sizes contradict one another",
            field="image_size",
        )


def _most_patches(eyes: EyesCheckpoint, kind: Kind, processor: Processor, image_tokens: int) -> int:
    """Patches of the largest scene, or of several."""
    if isinstance(processor, AnyShape | Gemma4):
        largest = image_tokens * kind.tower.fold
    else:
        read = eyes.hyperparameters
        largest = (read.integer("image_size", 0) // kind.cutter.patch) ** 2 + 1
    return max(_LEAST_PATCHES, largest)


def _check_memory(eyes: EyesCheckpoint) -> None:
    """Check that there is memory for the eyes.

    Raises:
        OutOfMemoryError: there is not.
    """
    needed = sum(tensor.nbytes for tensor in eyes.tensors.values())
    memory = machine_memory()
    if memory is not None and memory.free < needed:
        raise OutOfMemoryError(
            f"the eyes of {eyes.path} need {needed / 1e6:,.0f} MB of memory, and"
            f" {memory.free / 1e6:,.0f} MB are free; set a smaller kv_cache, or --mmproj none",
            param="model",
        )


def _summary(eyes: EyesCheckpoint) -> str:
    weights: Counter[str] = Counter()
    for tensor in eyes.tensors.values():
        weights[tensor.type.name] += math.prod(tensor.shape)
    return f"{eyes.architecture}, {weights.total() / 1e6:,.0f}M {weights.most_common(1)[0][0]}"


def _processor(eyes: EyesCheckpoint) -> Processor:
    """What prepares pictures for these eyes, by the values of their files."""
    makers = _PROCESSORS.get(eyes.architecture)
    if makers is None:
        raise UnsupportedModelError(
            f"pictures of eyes of kind {eyes.architecture} cannot be prepared"
        )
    of_folder, of_gguf = makers
    if eyes.format == "gguf":
        return of_gguf(eyes.metadata)
    folder = Path(eyes.path)
    one, other = (
        read_optional_json(folder / f"{name}_config.json") or {}
        for name in ("preprocessor", "processor")
    )
    return of_folder(fields.joined(one, other))
