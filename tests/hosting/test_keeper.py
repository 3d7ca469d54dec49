"""The keeper has models unloaded that no request has named for a while, and no others."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from heddle.config import EngineConfig
from heddle.hosting.entries import Entries, Entry
from heddle.hosting.status import ModelState
from heddle.hosting.unloads import Keeper
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 10 * PATIENCE


class Unloaded:
    """Stands in for `Unloads`: notes names, and changes their states under the lock."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.names: list[str] = []
        self.each = threading.Semaphore(0)

    def unload_quietly(self, name: str, why: str) -> None:
        assert why == "after its keep_alive"
        with self.entries.lock:  # the keeper does not hold it
            self.entries.by_name[name].state = ModelState.UNLOADED
        self.names.append(name)
        self.each.release()


class Rig:
    def __init__(self) -> None:
        self.entries = Entries(EngineConfig(), 0.0)
        self.unloads = Unloaded(self.entries)
        self.before = set(threading.enumerate())
        self.keeper = Keeper(self.entries, self.unloads)  # type: ignore[arg-type]

    def add(self, name: str, keep_alive: float, *, requests: int = 0) -> Entry:
        """Add a loaded model that no request has named for `LONG` seconds."""
        now: Any = SimpleNamespace(running=requests, queue_depth=0)
        engine: Any = SimpleNamespace(snapshot=lambda: now)
        entry = Entry(name, name, EngineConfig(), keep_alive=keep_alive, engine=engine)
        entry.state, entry.used_at = ModelState.LOADED, time.monotonic() - LONG
        self.entries.insert(entry)
        return entry

    def look(self) -> None:
        with self.entries.lock:
            self.keeper.look()

    def wait(self) -> None:
        """Wait until the keeper has unloaded one more model."""
        assert self.unloads.each.acquire(timeout=PATIENCE)

    @property
    def threads(self) -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one not in self.before]

    def end(self) -> None:
        """End the keeper, and wait until its thread has ended."""
        threads = self.threads
        with self.entries.lock:
            self.keeper.end()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.end()


def test_models_whose_time_is_over_are_unloaded_and_no_others(rig: Rig) -> None:
    rig.add("for ever", keep_alive=0)
    rig.add("in time", keep_alive=2 * LONG)
    rig.add("failed", keep_alive=1).state = ModelState.FAILED
    rig.add("over", keep_alive=1)
    rig.add("over too", keep_alive=LONG / 2)
    rig.look()
    for _ in range(2):
        rig.wait()
    rig.end()
    assert rig.unloads.names == ["over", "over too"]


def test_a_model_with_requests_counts_as_used_now(rig: Rig) -> None:
    busy, began = rig.add("busy", keep_alive=LONG, requests=1), time.monotonic()
    rig.add("idle", keep_alive=1)
    rig.look()
    rig.wait()
    rig.end()
    assert rig.unloads.names == ["idle"]
    assert busy.used_at >= began


def test_a_model_that_changes_is_looked_at_again(rig: Rig) -> None:
    entry = rig.add("one", keep_alive=2 * LONG)
    rig.look()
    with rig.entries.lock:
        entry.keep_alive = 1
        rig.keeper.look()
    rig.wait()
    assert rig.unloads.names == ["one"]


def test_one_thread_begins_with_the_first_model_that_has_a_keep_alive(rig: Rig) -> None:
    rig.add("for ever", keep_alive=0)
    rig.look()
    assert rig.threads == []
    rig.add("in time", keep_alive=2 * LONG)
    rig.look()
    rig.look()
    [thread] = rig.threads
    assert thread.daemon


def test_a_keeper_may_end_before_its_thread_first_looks(rig: Rig) -> None:
    rig.add("in time", keep_alive=2 * LONG)
    with rig.entries.lock:
        rig.keeper.look()
        [thread] = rig.threads
        rig.keeper.end()
    thread.join(PATIENCE)
    assert not thread.is_alive()
