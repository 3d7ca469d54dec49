"""Compute `data/pixels/*.json`: what transformers' image processors make of pictures.

pip install -e '.[test,logits]' pillow torchvision
PYTHONPATH=tests/extensions/vision:src python tests/extensions/vision/make_pixels.py NAME...
PYTHONPATH=tests/extensions/vision:src python tests/extensions/vision/make_pixels.py --compare 40

A name is a key of `vision_cases.CASES`; without names, all are computed. `--compare` writes
nothing: it compares every pixel of so many random pictures with Heddle's, and prints the largest
difference. Idefics3, Qwen, Gemma, Pixtral, InternVL, LLaVA-NeXT and GLM have processors that resize
by Pillow, as Heddle does. LFM2-VL and Llama 4 resize by torch only.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import transformers
import vision_cases
from PIL import Image

from heddle.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Tiles = list[NDArray[np.float32]]
    Reference = Callable[[vision_cases.Case, NDArray[np.uint8]], tuple[Tiles, str]]

DATA = Path(__file__).parent / "data" / "pixels"


@cache
def _classes(family: str) -> tuple[type, type]:
    """The image processor, and the processor that writes the text."""
    models = __import__("transformers.models", fromlist=["models"])
    image, text = {
        "idefics3": ("idefics3", "Idefics3"),
        "qwen_vl": ("qwen2_vl", "Qwen2VL"),
        "gemma3": ("gemma3", "Gemma3"),
        "pixtral": ("pixtral", "Pixtral"),
        "internvl": ("got_ocr2", "GotOcr2"),
        "lfm2_vl": ("lfm2_vl", "Lfm2Vl"),
        "llava": ("clip", "CLIP"),
        "llava_siglip": ("siglip", "Siglip"),
        "llava_next": ("llava_next", "LlavaNext"),
        "llama4": ("llama4", "Llama4"),
        "glm4v": ("glm4v", "Glm4v"),
        "gemma4": ("gemma4", "Gemma4"),
    }[family]
    pil = "" if family in ("lfm2_vl", "llama4") else "pil_"
    end = "Pil" if pil else ""
    module = _module(models, f"{image}.image_processing_{pil}{image}")
    processor = {
        "internvl": ("internvl", "InternVL"),
        "llava": ("llava", "Llava"),
        "llava_siglip": ("llava", "Llava"),
    }.get(family, (image, text))
    words = _module(models, f"{processor[0]}.processing_{processor[0]}")
    return (
        getattr(module, f"{text}ImageProcessor{end}"),
        getattr(words, f"{processor[1]}Processor"),
    )


def _module(models: Any, name: str) -> Any:
    return __import__(f"{models.__name__}.{name}", fromlist=["module"])


@cache
def _processor(name: str) -> Any:
    case = vision_cases.CASES[name]
    return _classes(case.family)[0](**case.image)


def reference(name: str, pixels: NDArray[np.uint8]) -> tuple[Tiles, str]:
    """Tiles and text by transformers."""
    case = vision_cases.CASES[name]
    processor, words = _processor(name), _classes(case.family)[1]
    return _REFERENCES[case.family](case, processor, words, Image.fromarray(pixels))


def _last(array: NDArray[np.float32]) -> Tiles:
    """Tiles (height, width, 3) of tiles (3, height, width)."""
    return [np.moveaxis(tile, 0, -1) for tile in array]


def _idefics3(case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    found = processor(image, return_row_col_info=True, return_tensors="np")
    this = SimpleNamespace(
        fake_image_token="<fake_token_around_image>",
        global_image_tag="<global-img>",
        image_token="<image>",
        image_seq_len=case.processor.get("image_seq_len", 169),
    )
    return _last(found["pixel_values"][0]), words.replace_image_token(this, found, 0)


def _grid(processor: Any, found: Any, token: str) -> tuple[Tiles, str]:
    """One tile of Qwen's patches: back from groups of merged patches, and of two same frames."""
    patch, merge = processor.patch_size, processor.merge_size
    _, down, across = found["image_grid_thw"][0]
    patches = found["pixel_values"].reshape(
        down // merge, across // merge, merge, merge, 3, processor.temporal_patch_size, patch, patch
    )
    assert (patches[:, :, :, :, :, :1] == patches).all()
    tile = patches[:, :, :, :, :, 0].transpose(0, 2, 5, 1, 3, 6, 4)
    return [tile.reshape(down * patch, across * patch, 3)], token


def _qwen_vl(_case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    found = processor(image, return_tensors="np")
    this = SimpleNamespace(image_processor=processor, image_token="<|image_pad|>")
    return _grid(processor, found, words.replace_image_token(this, found, 0))


def _glm4v(_case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    found = processor(image, return_tensors="np")
    this = SimpleNamespace(image_processor=processor, image_token="<|image|>")
    return _grid(processor, found, words.replace_image_token(this, found, 0))


def _gemma3(case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    tokenizer = SimpleNamespace(
        boi_token="<start_of_image>",
        boi_token_id=1,
        eoi_token="<end_of_image>",
        image_token="<image_soft_token>",
    )
    this = words.__new__(words)
    rows = case.processor.get("image_seq_length", 256)
    transformers.ProcessorMixin.__init__, before = (
        lambda *_args, **_kwargs: None,
        transformers.ProcessorMixin.__init__,
    )
    try:
        words.__init__(this, processor, tokenizer, image_seq_length=rows)
    finally:
        transformers.ProcessorMixin.__init__ = before
    found = processor(image, return_tensors="np", **words.images_kwargs)
    return _last(found["pixel_values"]), words.replace_image_token(this, found, 0)


def _pixtral(case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    this = SimpleNamespace(
        patch_size=case.processor.get("patch_size", 16),
        spatial_merge_size=case.processor.get("spatial_merge_size", 1),
        image_token="[IMG]",
        image_break_token="[IMG_BREAK]",
        image_end_token="[IMG_END]",
    )
    patch = this.patch_size * this.spatial_merge_size
    found = processor(image, patch_size=patch, return_tensors="np")
    return _last(found["pixel_values"]), words.replace_image_token(this, found, 0)


def _internvl(case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    this = SimpleNamespace(
        start_image_token="<img>",
        image_token="<IMG_CONTEXT>",
        end_image_token="</img>",
        image_seq_length=case.processor.get("image_seq_length", 256),
    )
    found = processor(image, return_tensors="np", **words.images_kwargs)
    return _last(found["pixel_values"]), words.replace_image_token(this, found, 0)


def _lfm2_vl(_case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    found = processor(image, return_row_col_info=True, return_tensors="np")
    patch = processor.encoder_patch_size
    tiles = []
    for (down, across), patches in zip(found["spatial_shapes"], found["pixel_values"], strict=True):
        squares = patches[: down * across].reshape(down, across, patch, patch, 3)
        tiles.append(squares.transpose(0, 2, 1, 3, 4).reshape(down * patch, across * patch, 3))
    this = words.__new__(words)
    this.image_processor, this.image_token = processor, "<image>"
    this.image_start_token, this.image_end_token = "<|image_start|>", "<|image_end|>"
    this.image_thumbnail_token = "<|img_thumbnail|>"
    return tiles, words.replace_image_token(this, found, 0, use_image_special_tokens=True)


def _llava(case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    found = processor(image, return_tensors="np")
    this = SimpleNamespace(
        image_token="<image>", **{"num_additional_image_tokens": 0, **case.processor}
    )
    return _last(found["pixel_values"]), words.replace_image_token(this, found, 0)


def _llava_next(case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    this = words.__new__(words)
    this.image_processor, this.image_token = processor, "<image>"
    this.patch_size = case.processor["patch_size"]
    this.num_additional_image_tokens = case.processor.get("num_additional_image_tokens", 0)
    this.vision_feature_select_strategy = case.processor["vision_feature_select_strategy"]
    found = processor(image, return_tensors="np")
    return _last(found["pixel_values"][0]), words.replace_image_token(this, found, 0)


def _llama4(_case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    found = processor(image, return_tensors="pt")
    this = words.__new__(words)
    this.patch_size, this.downsample_ratio = 14, 4
    tiles = found["pixel_values"]
    tiles = tiles.reshape(-1, *tiles.shape[-3:]).float().numpy()
    return _last(tiles), words.replace_image_token(this, found, 0)


def _gemma4(_case: Any, processor: Any, words: Any, image: Any) -> tuple[Tiles, str]:
    found = processor(image, return_tensors="np")
    places = found["image_position_ids"][0]
    across, down = places.max(axis=0) + 1
    patch = processor.patch_size
    patches = found["pixel_values"][0][: down * across].reshape(down, across, patch, patch, 3)
    tile = patches.transpose(0, 2, 1, 3, 4).reshape(down * patch, across * patch, 3)
    this = SimpleNamespace(boi_token="<|image>", image_token="<|image|>", eoi_token="<image|>")
    return [2 * (tile - np.float32(0.5))], words.replace_image_token(this, found, 0)


_REFERENCES: dict[str, Any] = {
    "idefics3": _idefics3,
    "qwen_vl": _qwen_vl,
    "gemma3": _gemma3,
    "pixtral": _pixtral,
    "internvl": _internvl,
    "lfm2_vl": _lfm2_vl,
    "llava": _llava,
    "llava_siglip": _llava,
    "llava_next": _llava_next,
    "llama4": _llama4,
    "glm4v": _glm4v,
    "gemma4": _gemma4,
}


def fixture(name: str, size: tuple[int, int]) -> list[Any] | None:
    """What a fixture keeps of one picture; None where transformers refuses the picture."""
    try:
        tiles, text = reference(name, vision_cases.picture(*size))
    except ValueError:
        return None
    token = vision_cases.CASES[name].made().row_token
    found = [float(f"{value:.6g}") for value in vision_cases.samples(tiles, size)]
    return [vision_cases.shapes(tiles), text.count(token), vision_cases.digest(text), found]


def write(name: str) -> None:
    made_with = f"transformers {transformers.__version__}, Pillow {Image.__version__}"
    lines = [f'{{"made_with": "{made_with}"']
    sizes = vision_cases.sizes()
    lines += [f'"{size[0]}x{size[1]}": {json.dumps(fixture(name, size))}' for size in sizes]
    (DATA / f"{name}.json").write_text(",\n".join(lines) + "\n}\n")


def compare(name: str, count: int) -> None:
    """Print the largest difference of pixels, and pictures whose tiles or texts differ."""
    case, worst, far, seen = vision_cases.CASES[name], 0.0, 0, 0
    ours = case.made()
    outcomes: Counter[str] = Counter()
    for size in vision_cases.sizes(seed=7, count=count):
        pixels = vision_cases.picture(*size)
        try:
            tiles, text = reference(name, pixels)
        except ValueError as error:
            try:
                outcomes["only transformers refuses"] += ours.count(*size) >= 0
                print(f"  {size}: {error}")
            except InvalidRequestError:
                outcomes["refused"] += 1
            continue
        try:
            prepared = ours.prepare(pixels)
        except InvalidRequestError:
            outcomes["only Heddle refuses"] += 1
            continue
        same = vision_cases.shapes(prepared.tiles) == vision_cases.shapes(tiles)
        same = same and prepared.text == text
        same = same and ours.count(*size) == text.count(ours.row_token)
        outcomes["same" if same else "other"] += 1
        if not same:
            print(f"  {size}: {vision_cases.shapes(prepared.tiles)} {vision_cases.shapes(tiles)}")
            continue
        for mine, theirs in zip(prepared.tiles, tiles, strict=True):
            difference = np.abs(mine - theirs)
            worst, seen = max(worst, float(difference.max())), seen + difference.size
            far += int((difference > 1e-5).sum())
    print(f"{name}: {dict(outcomes)}, largest difference {worst:.3g}, {far / seen:.2%} over 1e-5")


def main() -> None:
    words = sys.argv[1:]
    count = int(words.pop(words.index("--compare") + 1)) if "--compare" in words else None
    for name in [word for word in words if word != "--compare"] or vision_cases.CASES:
        if count is None:
            write(name)
        else:
            compare(name, count)


if __name__ == "__main__":
    main()
