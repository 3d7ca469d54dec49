"""What tests need to run the eyes of a folder on the CPU."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from heddle import _native
from heddle.executors.cpu.encoder import CpuEncoder
from heddle.extensions.reference.ops import (
    ReferenceLoader,
    ReferenceOps,
    SequenceCache,
    SequenceChunk,
)
from heddle.extensions.vision.files import eyes_of
from heddle.extensions.vision.kinds import kind_of
from heddle.extensions.vision.processors.prepared import Kept
from heddle.models.ops import Batch
from heddle.pictures import Look
from heddle.step import Sight
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.mix import AS_STORED, Mix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.extensions.vision.kinds.kind import Kind
    from heddle.pictures import Scene

KEPT = Kept(down=1, across=2, top=0, left=0, height=4, width=8)
"""What stays of the picture of the tiny LLaVA-NeXT: everything."""


@contextmanager
def eyes_in(folder: Path, model: TinyEyes, **changes: object) -> Iterator[EyesCheckpoint]:
    """The eyes of the model, written as a folder; `changes` replace keys of config.json."""
    with HuggingFaceCheckpoint.open(model.write_folder(folder, **changes)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        yield eyes


def look_at(kind: Kind, tiles: Sequence[np.ndarray], kept: Kept = KEPT) -> Look:
    """A look at a picture; `kept` says what stays of it if it is in lines."""
    stays = None if kind.row_break is None else kept
    return Look(1, kind.count(tiles, stays), kind.scenes(tiles), kind.arrange(tiles, stays))


def rows_of(eyes: EyesCheckpoint, kind: Kind, *looks: Look, seconds: float = 60) -> np.ndarray:
    """The rows of the first look, computed together with the others."""
    encoder = CpuEncoder(
        kind.tower, eyes, _native.Runtime(2, "auto", ()), Mix.named(AS_STORED), 256
    )
    wanted = list(looks)
    while wanted:
        encoder.advance(wanted, seconds)
        wanted = [look for look in wanted if look.rows is None]
    encoder.close()
    assert looks[0].rows is not None
    return looks[0].rows


def reference(eyes: EyesCheckpoint, kind: Kind, scene: Scene, kv_type: str) -> np.ndarray:
    """The rows of a scene by the reference of the operations."""
    loader = ReferenceLoader(eyes, allow_nonfinite=False)
    weights = kind.tower.load(loader)
    count = len(scene)
    chunk = SequenceChunk(SequenceCache(kv_type), 0, [0] * count, Sight(scene.places, scene.runs))
    fold = kind.tower.fold
    rows = np.arange(count // fold) * fold
    batch = Batch(np.zeros(count, int), np.arange(count), rows, scene.values)
    return kind.tower.forward(ReferenceOps([chunk]), weights, batch)


def seen(eyes: EyesCheckpoint, model: TinyEyes) -> np.ndarray:
    """The rows of the model's picture."""
    kind = kind_of(eyes)
    return rows_of(eyes, kind, look_at(kind, model.each_tile()))


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, in parts of the largest value."""
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())
