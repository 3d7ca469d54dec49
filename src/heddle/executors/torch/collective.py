"""What the ranks of a model tell one another during a step: values of the same shape."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from pathlib import Path


class Collective(Protocol):
    """Connects the ranks. All of them make the same calls in the same order."""

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The values x of all ranks, in the order of the ranks.

        Raises:
            RuntimeError: a rank has ended, or did not come in time.
        """
        ...


class GroupCollective:
    """A process group of torch: gloo on processors, NCCL on GPUs.

    The group is not the process's default group, so several models may have one.
    """

    def __init__(
        self, folder: Path, rank: int, ranks: int, device: torch.device, seconds: float
    ) -> None:
        """Wait until all ranks have come, at most `seconds`. `folder` is private to them.

        Raises:
            RuntimeError: they have not.
        """
        self._ranks = ranks
        store = dist.FileStore(str(folder / "store"), ranks)
        patience = timedelta(seconds=seconds)
        store.set_timeout(patience)
        self._group = _group(store, rank, ranks, device, patience)

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = x.contiguous()
        found = [torch.empty_like(x) for _ in range(self._ranks)]
        self._group.allgather([found], [x]).wait()
        return found


def _group(
    store: dist.Store, rank: int, ranks: int, device: torch.device, patience: timedelta
) -> dist.ProcessGroup:
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = patience
        return dist.ProcessGroupNCCL(store, rank, ranks, options)
    # Only this machine's processes may connect.
    local = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    options = dist.ProcessGroupGloo._Options()
    options._devices = [local]
    options._timeout = patience
    return dist.ProcessGroupGloo(store, rank, ranks, options)
