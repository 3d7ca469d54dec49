"""The processors on which threads compute by default, by copies of the kernel's files."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

import pytest

from heddle import cgroups, cores
from heddle.cores import Cores, choose_cores, usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

HYPER = "hyper-threads left out"
EFFICIENCY = "efficiency cores left out"


class Machine:
    """Processors, as files of the kernel describe them."""

    def __init__(self, devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices = devices
        self._patch = monkeypatch

    def allow(self, numbers: Iterable[int]) -> None:
        allowed = set(numbers)
        self._patch.setattr(os, "sched_getaffinity", lambda _: allowed, raising=False)

    def write(self, name: str, text: str) -> None:
        path = self.devices / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def siblings(self, *lists: str) -> None:
        """The list of each processor, from 0 on."""
        for number, text in enumerate(lists):
            self.write(f"system/cpu/cpu{number}/topology/thread_siblings_list", text)

    def capacities(self, *capacities: int | str) -> None:
        for number, capacity in enumerate(capacities):
            self.write(f"system/cpu/cpu{number}/cpu_capacity", str(capacity))

    def quota(self, quota: float | None) -> None:
        self._patch.setattr(cores, "cpu_quota", lambda: quota)

    def sysctl(self, **counts: int) -> None:
        """A macOS that has these counts of `hw.perflevel0`."""

        def sysctlbyname(name: bytes, value: Any, size: Any, new: None, length: Any) -> int:
            assert (size._obj.value, new, length.value) == (ctypes.sizeof(ctypes.c_int), None, 0)
            key = name.decode().removeprefix("hw.perflevel0.")
            value._obj.value = counts.get(key, 99)
            return 0 if key in counts else -1

        self._patch.setattr(cores, "_sysctl", sysctlbyname)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with eight processors and without files."""
    monkeypatch.setattr(cores, "_DEVICES", tmp_path)
    monkeypatch.setattr(cores, "_sysctl", None)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "no-cgroups")
    made = Machine(tmp_path, monkeypatch)
    made.allow(range(8))
    return made


def test_all_processors_compute_on_a_system_that_tells_nothing(machine: Machine) -> None:
    assert choose_cores() == Cores(tuple(range(8)), 8, ())
    assert choose_cores().note == ""
    machine.allow({5, 2})
    assert choose_cores() == Cores((2, 5), 2, ())
    assert usable_cores() == 2


def test_one_thread_of_a_core_computes(machine: Machine) -> None:
    machine.siblings("0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")
    assert choose_cores() == Cores((0, 1, 2, 3), 8, (HYPER,))
    assert choose_cores().note == " (of 8 processors: hyper-threads left out)"
    machine.siblings("0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7")
    assert choose_cores().numbers == (0, 2, 4, 6)
    machine.allow({1, 2, 3, 7})  # the other thread of a core may not be allowed
    assert choose_cores() == Cores((1, 2, 7), 4, (HYPER,))


@pytest.mark.parametrize("text", ["", "all", "0-", "-3", "9", "9-12", "9" * 5000])
def test_a_list_of_siblings_without_the_processor_itself_says_nothing(
    machine: Machine, text: str
) -> None:
    machine.siblings(*[text] * 8)
    assert choose_cores() == Cores(tuple(range(8)), 8, ())


def test_a_virtual_machine_with_a_thread_a_core_computes_on_all(machine: Machine) -> None:
    machine.siblings(*map(str, range(8)))
    machine.capacities(*[1024] * 8)
    assert choose_cores() == Cores(tuple(range(8)), 8, ())


def test_efficiency_cores_of_intel_do_not_compute(machine: Machine) -> None:
    machine.write("cpu_core/cpus", "0-3")
    machine.siblings("0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7")
    assert choose_cores() == Cores((0, 2), 8, (EFFICIENCY, HYPER))
    assert choose_cores().note.endswith("efficiency cores left out, hyper-threads left out)")
    machine.write("cpu_core/cpus", "0,2-3")
    assert choose_cores().numbers == (0, 2)


def test_efficiency_cores_compute_where_only_they_may(machine: Machine) -> None:
    machine.write("cpu_core/cpus", "0-3")
    machine.capacities(*[1024] * 4, *[400] * 4)
    machine.allow({4, 6})
    assert choose_cores() == Cores((4, 6), 2, ())
    machine.allow({3, 4, 6})
    assert choose_cores() == Cores((3,), 3, (EFFICIENCY,))


def test_cores_of_less_than_half_the_largest_capacity_do_not_compute(machine: Machine) -> None:
    machine.capacities(250, 250, 250, 511, 512, 800, 800, 1024)
    assert choose_cores() == Cores((4, 5, 6, 7), 8, (EFFICIENCY,))


def test_a_core_of_unknown_capacity_computes(machine: Machine) -> None:
    machine.capacities("?", 250, 1024)
    assert choose_cores().numbers == (0, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize(("quota", "threads"), [(0.5, 1), (1, 1), (2.5, 2), (3.99, 3), (64, 8)])
def test_a_quota_is_rounded_down(machine: Machine, quota: float, threads: int) -> None:
    machine.quota(quota)
    chosen = choose_cores()
    assert chosen.numbers == tuple(range(threads))
    assert chosen.left_out == (() if threads == 8 else (f"CPU quota of {quota:g}",))


def test_the_quota_of_the_container_counts(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    machine.write("own", "0::/")
    machine.write("cpu.max", "250000 100000")
    machine.siblings("0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")
    assert choose_cores().note == " (of 8 processors: hyper-threads left out, CPU quota of 2.5)"


@pytest.mark.parametrize(
    ("counts", "threads", "left_out"),
    [
        ({"logicalcpu": 4, "physicalcpu": 4}, 4, (EFFICIENCY,)),
        ({"logicalcpu": 8, "physicalcpu": 4}, 4, (HYPER,)),
        ({"logicalcpu": 0, "physicalcpu": -1}, 8, ()),
        ({}, 8, ()),
    ],
)
def test_macos_counts_its_performance_cores(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    counts: dict[str, int],
    threads: int,
    left_out: tuple[str, ...],
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    machine.sysctl(**counts)
    assert choose_cores() == Cores(tuple(range(threads)), 8, left_out)
