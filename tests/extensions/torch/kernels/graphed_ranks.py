"""Ranks whose steps are recorded, in emulation: Triton kernels, and one bucket of 16 tokens."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from heddle.extensions.torch.settings import TorchSettings

import triton_device  # noqa: F401 # isort: skip # before Triton is imported
from emulated_capture import EmulatedCapture

from heddle.extensions.torch import parallel, program
from heddle.extensions.torch.triton_ops import TritonOps

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from heddle.config import EngineConfig

REFUSED = "HEDDLE_TEST_REFUSED"
"""A variable of the environment. If it is set, child processes cannot record."""


class Prepared(EmulatedCapture):
    def prepare(self, region: Callable[[], None]) -> None:
        """Exchange values as a GPU does."""
        region()


class Refused(Prepared):
    def record(self, region: Callable[[], None]) -> Callable[[], None]:
        super().record(region)  # the other ranks wait for its values
        raise RuntimeError("operation not permitted")


def install(patch: Callable[[Any, str, Any], None], capture: type[EmulatedCapture]) -> None:
    """`patch` replaces an attribute."""

    def capture_of(device: torch.device, config: EngineConfig) -> EmulatedCapture | None:
        return capture() if config.of(TorchSettings).cuda_graphs else None

    patch(program, "operations", lambda device: TritonOps)
    patch(parallel, "most_rows", lambda slots: 16)
    patch(parallel, "capture_of", capture_of)


def prepare_child() -> None:
    """Let the process of a rank record its steps."""
    install(setattr, Refused if os.environ.get(REFUSED) else Prepared)
