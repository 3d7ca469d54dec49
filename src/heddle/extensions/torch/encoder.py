"""Eyes on a torch device: a program of their own, which works between the steps of the decoder."""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.errors import EngineFailedError, OutOfMemoryError, StepAbandonedError
from heddle.executors.graph.forward import record_eyes
from heddle.executors.scenes import MOST_SCENES, ScenePasses
from heddle.extensions.torch.allocation import is_out_of_memory, release
from heddle.extensions.torch.cache import bytes_of_page
from heddle.extensions.torch.device_errors import device_errors
from heddle.extensions.torch.division.claims import Claims
from heddle.extensions.torch.division.shares import whole
from heddle.extensions.torch.operations import operations, served
from heddle.extensions.torch.program import Program
from heddle.extensions.torch.weights import TorchLoader
from heddle.state import StateMemory, pages_for
from heddle.step import Chunk, Sight, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.models.eyes import Eyes
    from heddle.pictures import Look, Scene
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.mix import Mix

_KV_TYPE = "f16"


class TorchEncoder:
    """See :class:`heddle.pictures.Encoder`. One pass is in the works at a time.

    Attributes:
        held_bytes: bytes of the weights, keys and values.
    """

    def __init__(
        self, eyes: Eyes, checkpoint: Checkpoint, device: torch.device, mix: Mix, most: int
    ) -> None:
        """See :meth:`heddle.executors.seeing.SeeingExecutor.make_encoder`."""
        self._device, self._fold = device, eyes.fold
        loader = TorchLoader(
            checkpoint,
            device,
            mix=mix,
            allow_nonfinite=False,
            progress=lambda loaded: None,
            checks_matmuls=operations(device).uses_matmuls_of_torch,
        )
        kept, pages = eyes.kept, pages_for(most) + MOST_SCENES
        of_page = bytes_of_page(_KV_TYPE, 1, kept)
        # A layer is done before the next one begins: one place serves all.
        memory = StateMemory(pages, of_page, layers=(0,), shape=kept)
        try:
            claims = Claims(checkpoint, mix, loader.constants)
            forward = whole(served(record_eyes(eyes, eyes.load(claims))), loader)
            self._program = Program(forward, memory, _KV_TYPE, device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            release(device)
            raise OutOfMemoryError(f"device {device} has too little memory for the eyes") from error
        self.held_bytes: int = loader.bytes + memory.bytes
        self._passes = ScenePasses(most)
        self._work: Iterator[None] = iter(())
        self._abandoned = False

    def advance(self, wanted: Sequence[Look], seconds: float) -> None:
        until = time.perf_counter() + seconds
        self._passes.keep(wanted)
        failures: tuple[type[Exception], ...] = (ValueError, *device_errors())
        try:
            with torch.inference_mode():
                while self._passes.scenes or self._begin(wanted):
                    next(self._work, None)
                    self._wait()
                    if time.perf_counter() >= until:
                        return
        except failures as error:
            self._passes.forget()
            if is_out_of_memory(error):
                release(self._device)
            raise EngineFailedError(f"the eyes failed: {error}") from error

    def _begin(self, wanted: Sequence[Look]) -> bool:
        """Choose scenes for the next pass. Returns whether there are any."""
        if not self._passes.begin(wanted):
            return False
        self._work = self._computed(self._passes.scenes)
        return True

    def _computed(self, scenes: Sequence[Scene]) -> Iterator[None]:
        """Compute a pass, one operation at a time.

        Each scene is a sequence from position 0 on, so its company changes no bit.
        """
        step = yield from self._program.begin_in_pieces(_plan(scenes), self._check)
        counts = [len(scene) // self._fold for scene in scenes]
        begins = accumulate(map(len, scenes), initial=0)
        wanted = [
            begin + number * self._fold
            for begin, count in zip(begins, counts, strict=False)
            for number in range(count)
        ]
        found = []
        for _, rows in step.states(wanted):
            found.append(rows.cpu().numpy())
            yield
        self._passes.take(np.split(np.concatenate(found), np.cumsum(counts)[:-1]))

    def _wait(self) -> None:
        """Wait for the device: what it is asked for would else delay the next step."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _check(self) -> None:
        if self._abandoned:
            raise StepAbandonedError("the eyes were abandoned")

    def abandon(self) -> None:
        self._abandoned = True

    def close(self) -> None:
        for name in ("_program", "_work", "_passes"):
            vars(self).pop(name, None)
        release(self._device)


def _plan(scenes: Sequence[Scene]) -> StepPlan:
    """A step that computes scenes."""
    chunks, first = [], 0
    for slot, scene in enumerate(scenes):
        count = len(scene)
        pages = range(first, first + pages_for(count))
        sight = Sight(scene.places, scene.runs)
        chunks.append(Chunk(slot, 0, [0] * count, pages, False, states=scene.values, sight=sight))
        first = pages.stop
    return StepPlan((), tuple(chunks))
