"""Tiny random models with eyes: what each needs to be written as a folder, and its picture.

The text models are those of `models/tiny`. `data/NAME.json` has what `transformers` makes of the
picture and of a prompt with it; `make_pictures.py` writes these files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from folder_writer import write_safetensors, write_tokenizer
from models.tiny.base import TOKENS, Random

if TYPE_CHECKING:
    from collections.abc import Callable

    from models.tiny.base import TinyModel

    State = dict[str, np.ndarray]

DATA = Path(__file__).parent / "data"
IMAGE = 7
"""The token that stands for a row of the encoder."""
BEFORE = 4
"""Tokens of a prompt before its picture."""


@dataclass(frozen=True)
class TinyEyes:
    """A tiny model with eyes.

    Attributes:
        name: the kind of eyes.
        text: the text model.
        text_name: the name in the folder of a tensor of the text model.
        whole: config.json beside `text_config` and `vision_config`.
        vision: `vision_config`.
        eyes: makes the eyes' weights, under the names of the folder.
        size: height and width of the picture, or of each of its tiles.
        rows: rows that the picture becomes.
        text_more: keys of `text_config` beside those of the text model.
        tiles: tiles of the picture.
        unused: parts of names of tensors that no picture needs.
        file: name of the file of expected values, if it is not that of the kind.
    """

    name: str
    text: TinyModel
    text_name: Callable[[str], str]
    whole: dict[str, object]
    vision: dict[str, object]
    eyes: Callable[[Random], State]
    size: tuple[int, int]
    rows: int
    text_more: dict[str, object] = field(default_factory=dict)
    tiles: int = 1
    unused: tuple[str, ...] = ()
    file: str = ""

    def __str__(self) -> str:
        return self.file or self.name

    def config(self) -> dict[str, object]:
        """The content of config.json."""
        text = getattr(self.text, "text_config", self.text.config())
        text = text | {"pad_token_id": None} | self.text_more
        return {"vision_config": self.vision, "text_config": text} | self.whole

    def eyes_state(self) -> State:
        """The eyes' weights, under the names of the folder."""
        return self.eyes(Random(21))

    def used(self) -> set[str]:
        """The names in the folder of the eyes' tensors that pictures need."""
        names = self.eyes_state()
        return {name for name in names if not any(part in name for part in self.unused)}

    def write_folder(self, folder: Path, dtype: str = "F32", **changes: object) -> Path:
        """Write the model as a folder; `changes` replace keys of config.json."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config() | changes))
        state = {self.text_name(name): values for name, values in self.text.stored().items()}
        write_safetensors(folder / "model.safetensors", state | self.eyes_state(), dtype)
        write_tokenizer(folder / "tokenizer.json", self.text.vocabulary)
        return folder

    def pixels(self) -> np.ndarray:
        """The picture as the encoder reads it: (height, width, 3) float32, normalised."""
        return self.each_tile()[0]

    def each_tile(self) -> list[np.ndarray]:
        """The tiles of the picture, each as `pixels`."""
        random = Random(22)
        return [random.normal(*self.size, 3).clip(-2, 2) for _ in range(self.tiles)]

    def prompt(self) -> list[int]:
        """Tokens with the rows of the picture among them."""
        return [*TOKENS[:BEFORE], *[IMAGE] * self.rows, *TOKENS[BEFORE:]]

    def expected(self) -> dict[str, np.ndarray]:
        """By `transformers`: `rows` (rows, columns) of the picture; `logits` after the prompt.

        The columns are those for the input, then those for each of the first layers.
        """
        found = json.loads((DATA / f"{self}.json").read_text())
        return {name: np.array(found[name], np.float32) for name in found if name != "made_with"}


def layer_norm(random: Random, name: str, width: int) -> State:
    """The weights of a layer norm."""
    return {f"{name}.weight": random.near(1, width), f"{name}.bias": random.near(0, width)}


def rms_norm(random: Random, name: str, width: int) -> State:
    """The weights of an RMS norm."""
    return {f"{name}.weight": random.near(1, width)}


def linear(random: Random, name: str, rows: int, columns: int, *, bias: bool = True) -> State:
    """The weights of a linear layer."""
    found = {f"{name}.weight": random.matrix(rows, columns)}
    return found | {f"{name}.bias": random.near(0, rows)} if bias else found


def convolution(random: Random, name: str, shape: tuple[int, ...], *, bias: bool = True) -> State:
    """The weights of a convolution, whose products keep the magnitude of their input."""
    flat = random.matrix(shape[0], int(np.prod(shape[1:])))
    found = {f"{name}.weight": flat.reshape(shape)}
    return found | {f"{name}.bias": random.near(0, shape[0])} if bias else found


def siglip(random: Random, begin: str, layers: int, width: int, inner: int) -> State:
    """The layers of SigLIP and of CLIP. Queries and keys are enlarged, as in text models."""
    state: State = {}
    for i in range(layers):
        name = f"{begin}encoder.layers.{i}"
        state |= layer_norm(random, f"{name}.layer_norm1", width)
        for part in ("q", "k", "v", "out"):
            state |= linear(random, f"{name}.self_attn.{part}_proj", width, width)
        state |= layer_norm(random, f"{name}.layer_norm2", width)
        state |= linear(random, f"{name}.mlp.fc1", inner, width)
        state |= linear(random, f"{name}.mlp.fc2", width, inner)
        for part in ("q", "k"):
            state[f"{name}.self_attn.{part}_proj.weight"] *= 3
    return state
