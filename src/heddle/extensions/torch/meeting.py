"""Where the ranks of a model meet to connect: a folder of their machine, or a port of rank 0's."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

_PORT = "tcp://"


class Meeting(Protocol):
    """A place where ranks meet.

    Attributes:
        host: IP address of this machine for the other ranks.
    """

    host: str

    def store(self, name: str, ranks: int, seconds: float) -> dist.Store:
        """The store of one process group. Its calls wait at most `seconds`."""
        ...


class FolderMeeting:
    """Ranks of one machine meet in a private folder."""

    host = "127.0.0.1"  # only this machine's processes may connect

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, name: str, ranks: int, seconds: float) -> dist.Store:
        store = dist.FileStore(str(self._folder / name), ranks)
        store.set_timeout(timedelta(seconds=seconds))
        return store


class PortMeeting:
    """Ranks of several machines meet at a port of rank 0's machine.

    Attributes:
        place: names it for the other ranks.
    """

    def __init__(self, host: str, port: int, own: dist.Store | None = None) -> None:
        """`own`: the store that listens at the port, for rank 0."""
        self.place = f"{_PORT}{host}:{port}"
        self._port = host, port
        self._own = own
        self.host = host if own is not None else _address_towards(host, port)

    @classmethod
    def open(cls, host: str, seconds: float) -> PortMeeting:
        """Listen at a free port of this machine's address `host`, as rank 0."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        port = listener.getsockname()[1]
        own = dist.TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # else the store listens at all addresses
        )
        return cls(host, port, own)

    def store(self, name: str, ranks: int, seconds: float) -> dist.Store:
        own = self._own
        if own is None:
            patience = timedelta(seconds=seconds)
            own = dist.TCPStore(*self._port, timeout=patience, wait_for_workers=False)
        return dist.PrefixStore(name, own)


def meeting_at(place: str) -> Meeting:
    """The meeting that another rank goes to: a folder, or `tcp://HOST:PORT`."""
    if not place.startswith(_PORT):
        return FolderMeeting(Path(place))
    host, _, port = place.removeprefix(_PORT).rpartition(":")
    return PortMeeting(host, int(port))


def _address_towards(host: str, port: int) -> str:
    """The address of this machine that a machine sees. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
        return address
