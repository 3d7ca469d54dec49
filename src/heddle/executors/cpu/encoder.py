"""Eyes on the CPU: a program of their own, whose stages run between the steps of the decoder."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle import _native
from heddle.errors import (
    EngineFailedError,
    OutOfMemoryError,
    StepAbandonedError,
    UnsupportedModelError,
)
from heddle.executors.cpu.batch import ints
from heddle.executors.cpu.lowering import lower
from heddle.executors.cpu.ropes import RopeTables
from heddle.executors.cpu.weights import CpuLoader
from heddle.executors.graph.forward import record_eyes
from heddle.executors.scenes import MOST_SCENES, ScenePasses
from heddle.state import pages_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from heddle.models.eyes import Eyes
    from heddle.pictures import Look
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.mix import Mix

_ROWS = 256
"""Most rows that the projection to the decoder computes at once. More do not make it faster."""

_PARTS, _MOST_PARTS, _LONG = 6, 32, 0.2
"""Most parts of a stage, and of one that lasts longer than so many seconds. A matmul has six items
for each thread, so with more parts threads would wait for each other."""


class CpuEncoder:
    """See :class:`heddle.pictures.Encoder`. One batch of scenes is in the works at a time.

    Attributes:
        held_bytes: bytes of the packed weights.
    """

    def __init__(
        self, eyes: Eyes, checkpoint: Checkpoint, runtime: _native.Runtime, mix: Mix, most: int
    ) -> None:
        """See :meth:`heddle.executors.seeing.SeeingExecutor.make_encoder`."""
        self._width, self._fold = eyes.row_width, eyes.fold
        loader = CpuLoader(
            checkpoint,
            runtime,
            mix=mix,
            allow_nonfinite=False,
            progress=lambda packed: None,
        )
        forward = record_eyes(eyes, eyes.load(loader))
        self.held_bytes: int = loader.arena.allocated
        kept = eyes.kept
        try:
            pages = pages_for(most) + MOST_SCENES
            self._cache = _native.KvCache("f16", 1, kept.heads, kept.dim, pages)
            self._program = _native.Program(runtime, (self._cache,), most, _ROWS)
            ropes = RopeTables(self._program, most)
            # A layer is done before the next one begins: one place serves all.
            places: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
            _, inputs = lower(forward, self._program, ropes, places)
        except ValueError as error:
            raise UnsupportedModelError(f"the eyes cannot be run on a CPU: {error}") from error
        except MemoryError as error:
            raise OutOfMemoryError("there is too little memory for the eyes") from error
        assert inputs is not None, "eyes read patches"
        self._inputs = inputs
        ropes.reach(most)
        self._passes = ScenePasses(most)
        self._step: dict[str, Any] = {}  # of the batch: what `Program.begin` needs of each piece
        self._stage = self._part = 0
        self._parts = 1
        self._spent = 0.0  # seconds, for the parts of the stage so far
        self._costs: dict[int, float] = {}  # seconds for a patch, by stage, measured last

    def advance(self, wanted: Sequence[Look], seconds: float) -> None:
        until = time.perf_counter() + seconds
        self._passes.keep(wanted)
        try:
            while self._passes.scenes or self._begin(wanted):
                self._compute_piece(seconds)
                if time.perf_counter() >= until:
                    return
        except (ValueError, RuntimeError, MemoryError) as error:
            self._passes.forget()
            raise EngineFailedError(f"the eyes failed: {error}") from error

    def _begin(self, wanted: Sequence[Look]) -> bool:
        """Choose scenes for the next pass and make its arrays. Returns whether there are any.

        Each scene is a sequence from position 0 on, so its company changes no bit.
        """
        if not self._passes.begin(wanted):
            return False
        scenes = self._passes.scenes
        spans: list[tuple[int, int, int, int, int]] = []
        count = pages = 0
        for scene in scenes:
            spans.append((count, len(scene), 0, pages, 0))
            count += len(scene)
            pages += pages_for(len(scene))
        self._step = {
            "ids": np.zeros(count, np.int32),
            "positions": np.concatenate([np.arange(len(one), dtype=np.int32) for one in scenes]),
            "spans": np.array(spans, np.int32),
            "pages": np.arange(pages, dtype=np.int32),
            "rows": ints([]),
            "samplers": [],
            "places": np.ascontiguousarray(np.concatenate([scene.places for scene in scenes])),
            "runs": np.concatenate([scene.runs for scene in scenes]).reshape(count, -1),
        }
        self._program.write(self._inputs, np.concatenate([scene.values for scene in scenes]))
        self._stage = self._part = 0
        return True

    def _compute_piece(self, seconds: float) -> None:
        """Compute a part of a stage, in about so long; from the last one over patches on, all."""
        if self._stage == self._program.token_stages:
            self._finish()
            return
        count = len(self._step["ids"])
        if self._part == 0:
            expected = self._costs.get(self._stage, 0.0) * count
            most = _MOST_PARTS if expected > _LONG else _PARTS
            # What a stage takes is not known before the first pass.
            wanted = math.ceil(expected / max(seconds, 1e-3)) if expected else most
            self._parts = max(1, min(wanted, most))
            self._spent = 0.0
        piece, part = (self._stage, self._stage + 1), (self._part, self._parts)
        began = time.perf_counter()
        self._run(piece=piece, part=part)
        self._spent += time.perf_counter() - began
        self._part += 1
        if self._part == self._parts:
            self._costs[self._stage] = self._spent / count
            self._stage, self._part = self._stage + 1, 0

    def _finish(self) -> None:
        """Compute the rows, and give them to looks of which all scenes are done."""
        pooled: list[tuple[int, int, npt.NDArray[np.float64]]] = []
        begin = 0
        parts: list[npt.NDArray[np.float64]] = []
        for scene in self._passes.scenes:
            parts.append(np.zeros((len(scene) // self._fold, self._width)))
            pooled += [(begin + i * self._fold, 1, row) for i, row in enumerate(parts[-1])]
            begin += len(scene)
        self._run(piece=(self._stage, -1), pooled=pooled)
        self._passes.take([rows.astype(np.float32) for rows in parts])
        self._step = {}

    def _run(self, **piece: Any) -> None:
        if self._program.begin(**self._step, **piece).finish() is None:
            raise StepAbandonedError("the eyes were abandoned")

    def abandon(self) -> None:
        program = vars(self).get("_program")  # missing after `close`
        if program is not None:
            program.abandon()

    def close(self) -> None:
        for name in ("_program", "_cache", "_step", "_passes"):
            vars(self).pop(name, None)
