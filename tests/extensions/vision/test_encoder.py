"""Eyes on the CPU: what they forget, refuse and give up."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import pytest
from seen import eyes_in, look_at
from tiny_eyes import LLAVA

from heddle import _native
from heddle.errors import EngineFailedError, StepAbandonedError
from heddle.executors.cpu.encoder import CpuEncoder
from heddle.extensions.vision.kinds import kind_of
from heddle.weights.mix import AS_STORED, Mix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from heddle.pictures import Look

    Make = Callable[[int], CpuEncoder]


@pytest.fixture
def eyes(tmp_path: Path) -> Iterator[tuple[Make, Callable[[], Look]]]:
    """Makes encoders that see so many patches at once, and looks."""
    encoders: list[CpuEncoder] = []
    with eyes_in(tmp_path, LLAVA) as checkpoint:
        kind = kind_of(checkpoint)

        def make(most: int) -> CpuEncoder:
            runtime, mix = _native.Runtime(2, "auto", ()), Mix.named(AS_STORED)
            encoders.append(CpuEncoder(kind.tower, checkpoint, runtime, mix, most))
            return encoders[-1]

        yield make, lambda: look_at(kind, LLAVA.each_tile())
    for encoder in encoders:
        encoder.close()


def test_a_scene_that_fits_no_pass_fails(eyes: tuple[Make, Callable[[], Look]]) -> None:
    """Else the engine would call for ever."""
    make, look = eyes
    one = look()
    encoder = make(len(one.scenes[0]) - 1)
    with pytest.raises(EngineFailedError, match=r"eyes failed: \d+ patches are more than \d+"):
        encoder.advance([one], 60)


def test_abandoned_eyes_say_so(eyes: tuple[Make, Callable[[], Look]]) -> None:
    make, look = eyes
    encoder = make(256)
    encoder.abandon()
    with pytest.raises(StepAbandonedError):
        encoder.advance([look()], 60)


def test_what_nobody_wants_is_forgotten(eyes: tuple[Make, Callable[[], Look]]) -> None:
    make, look = eyes
    encoder, one = make(256), look()
    encoder.advance([one], 0)
    assert one.rows is None, "a piece is less than a picture"
    dropped = weakref.ref(one)
    del one
    assert dropped() is not None
    encoder.advance([], 0)
    assert dropped() is None
    other = look()
    encoder.advance([other], 60)
    assert other.rows is not None
