"""Collectives: the ranks of a model exchange values of the same shape during a step."""

from __future__ import annotations

import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

from heddle.extensions.torch.staging import Fetched

if TYPE_CHECKING:
    from heddle.extensions.torch.meeting import Meeting


class Collective(Protocol):
    """Connects the ranks. All of them make the same calls in the same order."""

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The values x of all ranks, in the order of the ranks.

        Raises:
            RuntimeError: a rank has ended, or did not come in time.
        """
        ...


class Compared:
    """Values of a step that all ranks must have alike, on their way to the host."""

    def __init__(self) -> None:
        self._parts: list[Fetched] = []

    def add(self, values: torch.Tensor) -> None:
        """Add values that the device computes next."""
        self._parts.append(Fetched(values))

    @property
    def is_done(self) -> bool:
        """Whether the device has computed all of them."""
        return all(part.is_here for part in self._parts)

    def digest(self) -> bytes:
        """A checksum of the values. Waits for the device."""
        crc = 0
        for part in self._parts:
            crc = zlib.crc32(part.read().numpy().tobytes(), crc)
        return crc.to_bytes(4, "little")


class GroupCollective:
    """A process group of torch: gloo on processors, NCCL on GPUs.

    The group is not the process's default group, so several models may have one.

    A CUDA graph records NCCL's calls like other work of its stream. Its watchdog asks for events
    meanwhile, which `capture_error_mode="thread_local"` allows, and does not watch recorded calls
    (pytorch/pytorch#103503, #148594). So a graph that waits for a rank forever is noticed in the
    next call outside of graphs. Nobody has run this on GPUs.
    """

    def __init__(
        self,
        meeting: Meeting,
        name: str,
        rank: int,
        ranks: int,
        device: torch.device,
        seconds: float,
    ) -> None:
        """All ranks meet under a name. They wait at most `seconds` for one another."""
        self._meeting = meeting
        self._name = name
        self._rank = rank
        self._ranks = ranks
        self._device = device
        self._seconds = seconds
        self._group: dist.ProcessGroup | None = None

    def join(self) -> None:
        """Wait until all ranks have come.

        Raises:
            RuntimeError: they have not, in time.
        """
        store = self._meeting.store(self._name, self._ranks, self._seconds)
        patience, host = timedelta(seconds=self._seconds), self._meeting.host
        self._group = _group(store, self._rank, self._ranks, self._device, patience, host)

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = x.new_empty((self._ranks * len(x), *x.shape[1:]))
        self._exchange(found, x.contiguous())
        return [*found.chunk(self._ranks)]

    def _exchange(self, found: torch.Tensor, x: torch.Tensor) -> None:
        """Ask the device to write the values of all ranks to `found`."""
        assert self._group is not None, "the ranks have joined"
        options = AllgatherOptions()
        options.asyncOp = False  # NCCL then works on this stream, with no events between streams
        self._group._allgather_base(found, x, options).wait()


def _group(
    store: dist.Store,
    rank: int,
    ranks: int,
    device: torch.device,
    patience: timedelta,
    host: str,
) -> dist.ProcessGroup:
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = patience
        return dist.ProcessGroupNCCL(store, rank, ranks, options)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = patience
    return dist.ProcessGroupGloo(store, rank, ranks, options)
