"""Broken downloads of the hub are resumed, tried again after pauses, and end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fake_hub import FakeHub, Reply, Repository, blob_of, commit
from heddle.errors import ChecksumError, ModelSourceError
from heddle.weights.hub import transfer
from patience import PATIENCE
from weights.hub_rig import WHOLE, found

if TYPE_CHECKING:
    from pathlib import Path

PAUSES = transfer._PAUSES


def test_a_cut_connection_is_resumed_where_it_stopped(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults["t.gguf"] = [Reply(cut=1000), Reply(status=500), Reply(status=429), Reply(cut=500)]
    path = found(hub, tmp_path, "org/t-GGUF").path
    assert path.read_bytes() == WHOLE
    asked = [place for path, place in hub.requests if path.endswith("t.gguf")]
    assert asked == ["", "bytes=1000-", "bytes=1000-", "bytes=1000-", "bytes=1500-"]


def test_a_later_process_continues_what_an_earlier_one_has_left(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults["t.gguf"] = [Reply(cut=2000), Reply(status=403)]
    with pytest.raises(ModelSourceError, match="refuses access"):
        found(hub, tmp_path, "org/t-GGUF")
    assert [path for path in (tmp_path / "hub").rglob("*.gguf") if path.exists()] == []
    hub.requests.clear()
    assert found(hub, tmp_path, "org/t-GGUF").path.read_bytes() == WHOLE
    assert hub.requests[-1][1] == "bytes=2000-"


def test_a_server_without_ranges_sends_the_file_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults["t.gguf"] = [Reply(cut=1000)]
    hub.ranges = False
    assert found(hub, tmp_path, "org/t-GGUF").path.read_bytes() == WHOLE


@pytest.mark.parametrize("content", [WHOLE, b"a small file"])
def test_other_bytes_than_promised_are_not_kept(
    hub: FakeHub, tmp_path: Path, content: bytes
) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": content})
    changed = content[:-1] + bytes([content[-1] ^ 1])
    hub.faults["t.gguf"] = [Reply(body=lambda _: changed)]
    with pytest.raises(ChecksumError, match=blob_of(changed)):
        found(hub, tmp_path, "org/t-GGUF")
    assert [path for path in (tmp_path / "hub").rglob("blobs/*") if path.exists()] == []


def test_attempts_end(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/t-GGUF"] = Repository.of({"t.gguf": WHOLE})
    hub.faults["t.gguf"] = [Reply(status=503)] * 9
    with pytest.raises(ModelSourceError, match=r"fails with 503; try again later"):
        found(hub, tmp_path, "org/t-GGUF")
    assert len(hub.fetched()) == 6


def test_a_failing_file_stops_the_others(hub: FakeHub, tmp_path: Path) -> None:
    names = [f"t-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hub.repositories["org/t-GGUF"] = Repository.of({name: WHOLE + name.encode() for name in names})
    hub.faults[names[1]] = [Reply(status=404)]
    with pytest.raises(ModelSourceError, match="does not exist"):
        found(hub, tmp_path, "org/t-GGUF")


def test_a_failing_file_ends_the_waits_of_the_others(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.repositories["org/t-GGUF"] = Repository.of({name: WHOLE + name.encode() for name in names})
    begun, stopped = threading.Event(), []

    def fetch(file: transfer.HubFile, *more: Any) -> None:
        if file.name == names[1]:
            begun.wait(PATIENCE)
            raise ChecksumError("the second file fails")
        begun.set()
        stopped.append(more[3].wait(PATIENCE))
        raise transfer.StoppedError

    monkeypatch.setattr("heddle.weights.hub.download.fetch", fetch)
    with pytest.raises(ChecksumError, match="the second file fails"):
        found(hub, tmp_path, "org/t-GGUF")
    assert stopped == [True]


class Waits(threading.Event):
    """Keeps how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return False


def fetch_with_waits(hub: FakeHub, tmp_path: Path, faults: list[Reply]) -> list[float | None]:
    """Fetch a file from a hub with these faults. Returns the pauses between the attempts."""
    hub.repositories["org/t"] = Repository.of({"t.gguf": WHOLE})
    hub.faults = {"t.gguf": faults}
    waits, blob = Waits(), tmp_path / "models--org--t" / "blobs" / blob_of(WHOLE)
    blob.parent.mkdir(parents=True, exist_ok=True)
    file = transfer.HubFile("t.gguf", len(WHOLE), blob_of(WHOLE))
    source = (hub.url, "org/t", commit("1"))
    transfer.fetch(file, blob, source, lambda _: None, waits)
    assert blob.read_bytes() == WHOLE
    return waits.seconds


def test_pauses_grow_until_bytes_arrive(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_PAUSES", PAUSES)
    busy, cut = Reply(503), Reply(cut=1000)
    waits = fetch_with_waits(hub, tmp_path, [busy, busy, busy, busy, cut, busy, busy])
    assert waits == [1, 2, 4, 8, 1, 2, 4]


def test_the_hub_may_ask_for_a_longer_pause(hub: FakeHub, tmp_path: Path) -> None:
    faults = [Reply(429, {"Retry-After": text}) for text in ("60", "7", "soon", "-1", "1.5")]
    assert fetch_with_waits(hub, tmp_path, faults) == [60, 7, 0, 0, 0]


@pytest.mark.parametrize("asked", ["61", "9" * 400])
def test_a_longer_pause_than_a_minute_is_an_error(hub: FakeHub, tmp_path: Path, asked: str) -> None:
    with pytest.raises(transfer.RefusedError, match="status 503"):
        fetch_with_waits(hub, tmp_path, [Reply(503, {"Retry-After": asked})])


@pytest.mark.parametrize("excess", [1, 1 << 20])
def test_a_part_that_is_too_long_begins_again(hub: FakeHub, tmp_path: Path, excess: int) -> None:
    part = tmp_path / "models--org--t" / "blobs" / f"{blob_of(WHOLE)}.heddle"
    part.parent.mkdir(parents=True)
    part.write_bytes(WHOLE + bytes(excess))
    assert fetch_with_waits(hub, tmp_path, []) == []
    assert [place for path, place in hub.requests] == [""]


@pytest.mark.parametrize("suffix", ["", ".heddle"])
def test_a_file_that_is_there_is_not_fetched_again(
    hub: FakeHub, tmp_path: Path, suffix: str
) -> None:
    """Of another revision, or of a process that ended just before the file got its name."""
    there = tmp_path / "models--org--t" / "blobs" / f"{blob_of(WHOLE)}{suffix}"
    there.parent.mkdir(parents=True)
    there.write_bytes(WHOLE)
    assert fetch_with_waits(hub, tmp_path, []) == []
    assert hub.requests == []
