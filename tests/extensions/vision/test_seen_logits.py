"""Logits after a prompt with a picture, beside those of transformers.

transformers computes in float32 throughout. The reference does, too, if its keys and values are
f32; device cpu keeps f16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from seen import KEPT, eyes_in, reference, seen
from tiny_eyes import MODELS
from tiny_eyes_base import BEFORE, IMAGE

from heddle.extensions.reference.model import ReferenceModel
from heddle.extensions.reference.ops import SequenceCache, SequenceChunk
from heddle.extensions.vision.kinds import kind_of
from heddle.extensions.vision.sighting import places_of
from heddle.pictures import Look, Pictures, Span
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

every_model = pytest.mark.parametrize("model", MODELS, ids=str)


def is_whole(model: TinyEyes) -> bool:
    """Whether the tokens of a picture see one another."""
    bidirectional = "use_bidirectional_attention" in model.text_more
    return model.name == "gemma3" or bidirectional


def logits(folder: Path, model: TinyEyes, rows: np.ndarray, kv_type: str) -> np.ndarray:
    """The logits after the prompt, where these rows stand for its picture."""
    tokens = [0 if token == IMAGE and model.name == "gemma4" else token for token in model.prompt()]
    spans = [Span(BEFORE, Look(1, len(rows), (), None, rows), 0, len(rows))]
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        places = None
        if checkpoint.hyperparameters.get("rope.sections") is not None:
            grid = (2, len(rows) // 2)
            places = places_of(len(tokens), spans, [grid])
        pictures = Pictures(spans, places, whole=is_whole(model))
        sight = pictures.sight(0, len(tokens))
        chunk = SequenceChunk(SequenceCache(kv_type), 0, tokens, sight)
        return ReferenceModel(checkpoint).forward([chunk])[-1]


@every_model
def test_in_float32_they_are_those_of_transformers(tmp_path: Path, model: TinyEyes) -> None:
    with eyes_in(tmp_path, model) as eyes:
        kind, tiles = kind_of(eyes), model.each_tile()
        rows = np.concatenate([reference(eyes, kind, one, "f32") for one in kind.scenes(tiles)])
        arrange = kind.arrange(tiles, KEPT)
        rows = rows if arrange is None else arrange(rows)
    found = logits(tmp_path, model, np.ascontiguousarray(rows, np.float32), "f32")
    np.testing.assert_allclose(found, model.expected()["logits"], rtol=0, atol=1e-3)


@every_model
def test_with_keys_and_values_of_f16_they_are_near(tmp_path: Path, model: TinyEyes) -> None:
    with eyes_in(tmp_path, model) as eyes:
        rows = seen(eyes, model)
    found = logits(tmp_path, model, rows, "f16")
    np.testing.assert_allclose(found, model.expected()["logits"], rtol=0, atol=1e-2)
