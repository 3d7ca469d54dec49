"""Pictures on torch: rows of eyes, and what the text model makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from seen import KEPT, distance, eyes_in, look_at, seen
from tiny_eyes import LLAVA, MODELS
from tiny_eyes_base import BEFORE

from heddle.config import EngineConfig
from heddle.errors import EngineFailedError, OutOfMemoryError, StepAbandonedError
from heddle.executors.cpu.load import load as load_on_cpu
from heddle.extensions.vision.kinds import kind_of
from heddle.pictures import Pictures
from heddle.step import Chunk
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.mix import AS_STORED, Mix
from sight_steps import pages, pictures_of, scored, values

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.extensions.vision.kinds.kind import Kind
    from heddle.pictures import Look

torch = pytest.importorskip("torch")
from heddle.extensions.torch import attention, ops  # noqa: E402
from heddle.extensions.torch import encoder as torch_encoder  # noqa: E402
from heddle.extensions.torch.encoder import TorchEncoder  # noqa: E402
from heddle.extensions.torch.load import load  # noqa: E402

every_model = pytest.mark.parametrize("model", MODELS, ids=str)
DEVICE = torch.device("cpu")


def rows_of(eyes: EyesCheckpoint, kind: Kind, *looks: Look, seconds: float = 60) -> np.ndarray:
    """The rows of the first look, computed together with the others."""
    encoder = TorchEncoder(kind.tower, eyes, DEVICE, Mix.named(AS_STORED), 256)
    wanted = list(looks)
    while wanted:
        encoder.advance(wanted, seconds)
        wanted = [look for look in wanted if look.rows is None]
    encoder.close()
    assert looks[0].rows is not None
    return looks[0].rows


@every_model
def test_rows_are_those_of_the_cpu_and_the_same_in_company_and_pieces(
    tmp_path: Path, model: TinyEyes
) -> None:
    tiles = model.each_tile()
    others = [tile[::-1].copy() for tile in tiles]
    with eyes_in(tmp_path, model) as eyes:
        kind = kind_of(eyes)
        alone = rows_of(eyes, kind, look_at(kind, tiles))
        assert distance(alone, seen(eyes, model)) < 3e-3
        assert distance(alone, model.expected()["rows"]) < 3e-3
        one, other = look_at(kind, tiles), look_at(kind, others)
        rows_of(eyes, kind, other, one)
        np.testing.assert_array_equal(one.rows, alone)
        assert not np.array_equal(other.rows, alone)
        np.testing.assert_array_equal(rows_of(eyes, kind, look_at(kind, tiles), seconds=0), alone)


# --- the text model ------------------------------------------------------------------------------

CONFIG = EngineConfig(
    slots=2, threads=1, kv_cache=4 << 20, batch_tokens=128, speculation="off", device="torch"
)


@every_model
def test_a_prompt_with_a_picture_agrees_with_the_cpu_and_is_exact(
    tmp_path: Path, model: TinyEyes
) -> None:
    """Alone, in two chunks, and beside a text and another picture in the same step."""
    tokens = model.prompt()
    checkpoint = HuggingFaceCheckpoint.open(model.write_folder(tmp_path))
    has_axes = checkpoint.hyperparameters.get("rope.sections") is not None
    seen = pictures_of(model, model.expected()["rows"], has_axes=has_axes)
    own, cpu = load(checkpoint, CONFIG), load_on_cpu(checkpoint, replace(CONFIG, device="cpu"))
    alone = scored(own, tokens, seen)
    np.testing.assert_allclose(values(alone), values(scored(cpu, tokens, seen)), atol=2e-2)
    blind = scored(own, tokens, Pictures(()))
    assert np.abs(values(alone)[BEFORE:] - values(blind)[BEFORE:]).max() > 0.1
    assert blind[: BEFORE - 1] == alone[: BEFORE - 1], "a prefix has the bits of one without"
    cut = BEFORE if seen.whole else BEFORE + 2
    assert scored(own, tokens, seen, [cut]) == alone
    assert scored(own, tokens, seen, [len(tokens) - 1]) == alone
    other = pictures_of(model, model.expected()["rows"][::-1].copy(), has_axes=has_axes)
    beside = [
        Chunk(0, 0, tokens, sample=False, sight=sight, **pages(own, 0))
        for sight in (None, other.sight(0, len(tokens)))
    ]
    for one in beside:
        assert scored(own, tokens, seen, company=[one]) == alone
    text = scored(own, tokens, Pictures(()), company=beside[1:])
    assert text == blind, "a text beside a picture has its bits"


# --- failures ------------------------------------------------------------------------------------


def test_eyes_say_why_they_fail_and_forget(tmp_path: Path) -> None:
    with eyes_in(tmp_path, LLAVA) as eyes:
        kind = kind_of(eyes)
        look = look_at(kind, LLAVA.each_tile(), KEPT)
        small, encoder = (
            TorchEncoder(kind.tower, eyes, DEVICE, Mix.named(AS_STORED), most) for most in (3, 256)
        )
        with pytest.raises(EngineFailedError, match=r"eyes failed: \d+ patches are more than 3"):
            small.advance([look], 60)
        encoder.advance([look], 0)
        assert look.rows is None, "a piece is less than a picture"
        encoder.advance([], 0)
        other = look_at(kind, LLAVA.each_tile(), KEPT)
        encoder.advance([other], 60)
        assert other.rows is not None
        encoder.abandon()
        with pytest.raises(StepAbandonedError):
            encoder.advance([look], 60)


def test_tiles_that_are_computed_at_once_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with eyes_in(tmp_path, LLAVA) as eyes:
        kind = kind_of(eyes)
        tiles = LLAVA.each_tile()
        looks = [[look_at(kind, tiles) for _ in range(3)] for _ in range(2)]
        whole = rows_of(eyes, kind, *looks[0])
        monkeypatch.setattr(attention, "_TILES_AT_ONCE", 1)
        np.testing.assert_array_equal(rows_of(eyes, kind, *looks[1]), whole)


def test_a_device_without_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **more: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory")

    with eyes_in(tmp_path, LLAVA) as eyes:
        kind = kind_of(eyes)
        encoder = TorchEncoder(kind.tower, eyes, DEVICE, Mix.named(AS_STORED), 256)
        look = look_at(kind, LLAVA.each_tile())
        with monkeypatch.context() as patch:
            patch.setattr(ops, "attend", fail)
            with pytest.raises(EngineFailedError, match=r"the eyes failed: .* not enough memory"):
                encoder.advance([look], 60)
        encoder.advance([look], 60)
        assert look.rows is not None, "they go on"
        monkeypatch.setattr(torch_encoder, "Program", fail)
        with pytest.raises(OutOfMemoryError, match="cpu has too little memory for the eyes"):
            TorchEncoder(kind.tower, eyes, DEVICE, Mix.named(AS_STORED), 256)
