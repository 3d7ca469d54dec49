"""Pictures and values that the fixtures of processors are made of, and what a fixture keeps."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.vision.processors.any_shape import glm4v_of, qwen_vl_of
from heddle.extensions.vision.processors.fields import joined
from heddle.extensions.vision.processors.gemma3 import gemma3_of
from heddle.extensions.vision.processors.gemma4 import gemma4_of
from heddle.extensions.vision.processors.idefics3 import idefics3_of
from heddle.extensions.vision.processors.internvl import internvl_of
from heddle.extensions.vision.processors.lfm2_vl import lfm2_vl_of
from heddle.extensions.vision.processors.llama4 import llama4_of
from heddle.extensions.vision.processors.llava import llava_of
from heddle.extensions.vision.processors.llava_next import llava_next_of
from heddle.extensions.vision.processors.pixtral import pixtral_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.prepared import Processor

SAMPLES = 4
"""Values that a fixture keeps of a picture."""


@dataclass(frozen=True)
class Case:
    """Values of a model's folder, and the processor that they make.

    Attributes:
        family: name of the family's reference.
        image: values of preprocessor_config.json.
        processor: values of processor_config.json.
        is_small: whether the values make small tiles, so that all pictures are prepared by tests.
        levels: levels of 256 by which transformers may differ, which resizes by torch there.
    """

    family: str
    make: Callable[[dict[str, object]], Processor]
    image: dict[str, object]
    processor: dict[str, object] = field(default_factory=dict)
    is_small: bool = False
    levels: int = 0

    def made(self) -> Processor:
        return self.make(joined(self.image, self.processor))


def _half() -> dict[str, object]:
    return {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def _edge(pixels: int) -> dict[str, int]:
    return {"longest_edge": pixels}


def _square(pixels: int) -> dict[str, int]:
    return {"height": pixels, "width": pixels}


_IMAGENET: dict[str, object] = {
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}

_LLAVA: dict[str, object] = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}

CASES = {
    "idefics3": Case("idefics3", idefics3_of, {}),
    "smolvlm2": Case(
        "idefics3",
        idefics3_of,
        {"size": _edge(2048), "max_image_size": _edge(512)},
        {"image_seq_len": 64},
    ),
    "idefics3_small": Case(
        "idefics3",
        idefics3_of,
        {"size": _edge(120), "max_image_size": _edge(32)},
        {"image_seq_len": 4},
        is_small=True,
    ),
    "idefics3_uncut": Case(
        "idefics3",
        idefics3_of,
        {"size": _edge(120), "max_image_size": _edge(32), "do_image_splitting": False},
        {"image_seq_len": 4},
        is_small=True,
    ),
    "qwen2_vl": Case("qwen_vl", qwen_vl_of, {"min_pixels": 3136, "max_pixels": 12845056}),
    "qwen3_vl": Case(
        "qwen_vl",
        qwen_vl_of,
        _half() | {"patch_size": 16, "size": {"shortest_edge": 256 * 256, "longest_edge": 1 << 24}},
    ),
    "qwen_vl_small": Case(
        "qwen_vl", qwen_vl_of, {"min_pixels": 56 * 56, "max_pixels": 90000}, is_small=True
    ),
    "gemma3": Case("gemma3", gemma3_of, {"size": _square(896)}),
    "gemma3_small": Case("gemma3", gemma3_of, {"size": _square(56)}, {}, is_small=True),
    "pixtral": Case("pixtral", pixtral_of, {}),
    "mistral3": Case(
        "pixtral", pixtral_of, {"size": _edge(1540)}, {"patch_size": 14, "spatial_merge_size": 2}
    ),
    "pixtral_small": Case("pixtral", pixtral_of, {"size": _edge(150)}, is_small=True),
    "internvl": Case("internvl", internvl_of, _IMAGENET | {"size": _square(448)}),
    "internvl_small": Case(
        "internvl",
        internvl_of,
        {"size": _square(42), "max_patches": 12},
        {"image_seq_length": 9},
        is_small=True,
    ),
    "lfm2_vl": Case("lfm2_vl", lfm2_vl_of, {}, levels=2),
    "lfm2_vl_small": Case(
        "lfm2_vl",
        lfm2_vl_of,
        {"max_image_tokens": 32, "min_image_tokens": 8, "tile_size": 64},
        is_small=True,
        levels=2,
    ),
    "llava": Case(
        "llava", llava_of, {"size": {"shortest_edge": 336}, "crop_size": _square(336)}, _LLAVA
    ),
    "llava_siglip": Case(
        "llava_siglip",
        llava_of,
        _half() | {"size": _square(384)},
        {"patch_size": 14, "vision_feature_select_strategy": "full"},
    ),
    "llava_small": Case(
        "llava",
        llava_of,
        {"size": {"shortest_edge": 43}, "crop_size": _square(43)},
        _LLAVA,
        is_small=True,
    ),
    "llava_next": Case(
        "llava_next",
        llava_next_of,
        {"size": {"shortest_edge": 336}, "crop_size": _square(336)},
        _LLAVA,
    ),
    "granite_vision": Case(
        "llava_next",
        llava_next_of,
        _half()
        | {
            "size": _square(384),
            "crop_size": _square(384),
            "image_grid_pinpoints": [
                [384 * down, 384 * across]
                for down in range(1, 11)
                for across in range(1, 11)
                if down * across <= 10 and down + across > 2
            ],
        },
        {"patch_size": 14, "vision_feature_select_strategy": "full"},
    ),
    "llava_next_small": Case(
        "llava_next",
        llava_next_of,
        {
            "size": {"shortest_edge": 42},
            "crop_size": _square(42),
            "image_grid_pinpoints": [[42, 84], [84, 42], [84, 84], [126, 42], [42, 126]],
        },
        _LLAVA,
        is_small=True,
    ),
    "llama4": Case("llama4", llama4_of, {}, levels=2),
    "llama4_small": Case("llama4", llama4_of, {"size": _square(56)}, is_small=True, levels=2),
    "llama4_large": Case(
        "llama4",
        llama4_of,
        {"size": _square(56), "resize_to_max_canvas": True},
        is_small=True,
        levels=2,
    ),
    "glm4v": Case("glm4v", glm4v_of, {"size": {"shortest_edge": 12544, "longest_edge": 9633792}}),
    "glm4v_small": Case(
        "glm4v",
        glm4v_of,
        {"size": {"shortest_edge": 12544, "longest_edge": 90000}},
        is_small=True,
    ),
    "gemma4": Case("gemma4", gemma4_of, {}),
    "gemma4_small": Case(
        "gemma4", gemma4_of, {"max_soft_tokens": 70, "patch_size": 8}, is_small=True
    ),
}

THIN = [(1, 1), (2, 1), (1, 3), (1, 150), (190, 1), (1, 260), (7, 1300), (2500, 13)]
USUAL = [
    *((640, 480), (480, 640), (512, 512), (896, 896), (224, 224), (1000, 500), (500, 1000)),
    *((1024, 768), (1456, 364), (364, 364), (1920, 1080), (2048, 2048), (333, 777)),
]


def sizes(seed: int = 0, count: int = 24) -> list[tuple[int, int]]:
    """Widths and heights: thin ones, usual ones, and random ones of all orders of magnitude."""
    draws = random.Random(seed)
    drawn = [
        (round(2 ** draws.uniform(3, 11)), round(2 ** draws.uniform(3, 11))) for _ in range(count)
    ]
    return [*THIN, *USUAL, *drawn]


def picture(width: int, height: int) -> NDArray[np.uint8]:
    """A picture that has slopes, edges and fine patterns, made of whole numbers only."""
    y, x = np.mgrid[0:height, 0:width]
    layers = [x * 3 + y * 2, (x * y >> 4) + 7 * x, (x ^ y) * 5 + (x * x >> 6)]
    return np.stack([layer & 255 for layer in layers], axis=-1).astype(np.uint8)


def samples(tiles: Sequence[NDArray[np.float32]], size: tuple[int, int]) -> list[float]:
    """The mean of all tiles, and some of their values."""
    flat = np.concatenate([tile.ravel() for tile in tiles])
    places = random.Random(f"{size}").choices(range(flat.size), k=SAMPLES)
    return [float(flat.mean(dtype=np.float64)), *(float(flat[place]) for place in places)]


def shapes(tiles: Iterable[NDArray[np.float32]]) -> list[list[int]]:
    """Number, height and width of each run of tiles with the same size."""
    runs: list[list[int]] = []
    for tile in tiles:
        size = list(tile.shape[:2])
        if runs and runs[-1][1:] == size:
            runs[-1][0] += 1
        else:
            runs.append([1, *size])
    return runs


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
