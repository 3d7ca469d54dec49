"""Available memory, as the kernel reports it."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from heddle import cgroups, process_memory
from heddle.engine.requests import admission
from heddle.errors import OutOfMemoryError
from heddle.executor import DeviceMemory
from heddle.executors.cpu.byte_sizes import packed_bytes
from heddle.executors.memory_plan import Room, check_memory
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that replaces /proc and the control group."""
    monkeypatch.setattr(process_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text("0::/\n")
    monkeypatch.setattr(process_memory, "_STATM", tmp_path / "statm")
    return tmp_path


def room(keep: int = 0) -> Room:
    return Room(process_memory.memory_limits(), 0.5, keep)


def limit(kernel: Path, most: str, *, current: int, files: int) -> None:
    (kernel / "memory.max").write_text(f"{most}\n")
    (kernel / "memory.current").write_text(f"{current}\n")
    stat = f"anon 5\nfile 7\ninactive_file {files - 3}\nactive_file 3\n"
    (kernel / "memory.stat").write_text(stat)


def test_available_memory_has_a_small_default(kernel: Path) -> None:
    assert process_memory.available_bytes() == 2048 * MIB


def test_available_memory_is_what_the_kernel_reports(kernel: Path) -> None:
    (kernel / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  4000 kB\n")
    assert process_memory.available_bytes() == 4000 * 1024
    limit(kernel, "max", current=10**12, files=3)
    assert process_memory.available_bytes() == 4000 * 1024


def test_a_cgroup_limit_leaves_memory_that_is_free_or_file_cache(kernel: Path) -> None:
    limit(kernel, str(1000 * MIB), current=990 * MIB, files=600 * MIB)
    assert process_memory.available_bytes() == 610 * MIB
    limit(kernel, str(1000 * MIB), current=1001 * MIB, files=3)
    assert process_memory.available_bytes() == 0


def test_the_group_with_the_least_memory_left_bounds_a_load(kernel: Path) -> None:
    (kernel / "cgroup").write_text("0::/own\n")
    (kernel / "own").mkdir()
    limit(kernel / "own", str(4 * MIB), current=2 * MIB, files=MIB)
    limit(kernel, str(9 * MIB), current=8 * MIB, files=MIB)
    assert process_memory.machine_memory() == DeviceMemory(2 * MIB, 4 * MIB)


def test_the_memory_of_a_machine_is_that_of_its_container(kernel: Path) -> None:
    assert process_memory.machine_memory() is None
    (kernel / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  4000 kB\n")
    assert process_memory.machine_memory() == DeviceMemory(4000 * 1024, 9000 * 1024)
    limit(kernel, str(5 * MIB), current=4 * MIB, files=MIB)
    assert process_memory.machine_memory() == DeviceMemory(2 * MIB, 5 * MIB)
    limit(kernel, "max", current=4 * MIB, files=MIB)
    assert process_memory.machine_memory() == DeviceMemory(4000 * 1024, 9000 * 1024)


def test_an_address_space_limit_leaves_what_is_not_mapped(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernel / "meminfo").write_text("MemAvailable:  8000000 kB\n")
    (kernel / "statm").write_text(f"{600 * MIB // resource.getpagesize()} 5 3 1 0 2 0\n")
    space = [1512 * MIB]
    monkeypatch.setattr(process_memory.resource, "getrlimit", lambda _: (space[0], space[0]))
    assert process_memory.available_bytes() == 400 * MIB
    check_memory(300 * MIB, 100 * MIB, room())
    with pytest.raises(OutOfMemoryError, match=r"ulimit -v, 0\.42 GB: set a smaller kv"):
        check_memory(300 * MIB, 101 * MIB, room())
    space[0] = 500 * MIB  # a limit can be lower than the memory already mapped
    assert process_memory.available_bytes() == 0
    space[0] = resource.RLIM_INFINITY
    assert process_memory.available_bytes() == 8_000_000 * 1024


def test_a_load_leaves_the_memory_to_keep_free(kernel: Path) -> None:
    (kernel / "meminfo").write_text("MemAvailable:  1000000 kB\n")
    check_memory(600 * 10**6, 24 * 10**6, room(400 * 10**6))
    wanted = r"0\.60 GB and a KV cache of 0\.03 GB and 0\.40 GB to keep free .*, 1\.02 GB: set a sm"
    with pytest.raises(OutOfMemoryError, match=wanted) as error:
        check_memory(600 * 10**6, 25 * 10**6, room(400 * 10**6))
    assert error.value.param == "kv_cache"
    with pytest.raises(OutOfMemoryError, match="set a smaller min_free_memory, or take") as error:
        check_memory(700 * 10**6, 25 * 10**6, room(400 * 10**6))
    assert error.value.param == "min_free_memory"


def test_a_model_stays_within_its_own_limit(kernel: Path) -> None:
    (kernel / "meminfo").write_text("MemAvailable:  9000000 kB\n")
    check_memory(600 * 10**6, 100 * 10**6, room(400 * 10**6), most=700 * 10**6)
    wanted = (
        r"0\.60 GB and a KV cache of 0\.11 GB do not fit 0\.70 GB, the memory that the settings"
    )
    with pytest.raises(OutOfMemoryError, match=wanted):
        check_memory(600 * 10**6, 110 * 10**6, room(400 * 10**6), most=700 * 10**6)


def test_requests_are_refused_until_memory_recovers(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(admission, "monotonic", lambda: now[0])
    meminfo = kernel / "meminfo"
    meminfo.write_text("MemAvailable:  524288 kB\n")
    gauge = admission.FreeMemory(512 * MIB)
    gauge.check()
    meminfo.write_text("MemAvailable:  524287 kB\n")
    gauge.check()  # the reading is not old enough
    now[0] = 0.5
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=r"memory is 0\.54 GB; min_free_memory keeps"):
            gauge.check()
    admission.FreeMemory(0).check()
    meminfo.write_text("MemAvailable:  600000 kB\n")
    now[0] = 1.0
    gauge.check()


def test_packed_weights_are_counted_as_they_lie_in_memory() -> None:
    assert packed_bytes((8, 512), TensorType.F16) == 8 * 512 * 2
    assert packed_bytes((8, 512), TensorType.Q8_0) == 8 * 512 // 32 * 34
    assert packed_bytes((2, 8, 512), TensorType.IQ1_M) > 2 * 8 * 512 // 256 * 56
