"""The kinds of eyes: the tower and the cutter of each, from the checkpoint of the eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.extensions.vision.kinds import gemma4, pixtral, qwen, siglip, squares

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.extensions.vision.kinds.kind import Kind


def kind_of(eyes: EyesCheckpoint) -> Kind:
    """The eyes of a checkpoint. It reads the vectors of positions, and other small tensors.

    Raises:
        UnsupportedModelError: the kind, or a value, is not supported.
        ModelFileError: a value or a tensor is missing, or contradicts another.
    """
    build = _KINDS.get(eyes.architecture)
    if build is None:
        known = ", ".join(sorted(_KINDS))
        raise UnsupportedModelError(
            f"eyes of kind {eyes.architecture!r} are not supported; supported: {known}",
            param="vision_config",
        )
    return build(eyes)


_KINDS: dict[str, Callable[[EyesCheckpoint], Kind]] = {
    "idefics3": siglip.idefics3,
    "gemma3": siglip.gemma3,
    "gemma4": gemma4.gemma4,
    "lfm2_vl": siglip.lfm2_vl,
    "llava": siglip.llava,
    "llava_next": siglip.llava_next,
    "pixtral": pixtral.pixtral,
    "mistral3": pixtral.pixtral,
    "qwen2_vl": qwen.qwen2_vl,
    "qwen2_5_vl": qwen.qwen2_vl,
    "qwen3_vl": qwen.qwen3_vl,
    "glm4v": qwen.glm4v,
    "internvl": squares.internvl,
    "llama4": squares.llama4,
}
