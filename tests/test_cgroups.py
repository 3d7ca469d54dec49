"""Limits of control groups, read from copies of the kernel's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle import cgroups
from heddle.cgroups import MemoryLimit, cpu_quota, memory_limits

if TYPE_CHECKING:
    from pathlib import Path

NO_LIMIT = "9223372036854771712"


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that replaces /sys/fs/cgroup. `own` beside it replaces /proc/self/cgroup."""
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path / "mount")
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    return tmp_path / "mount"


def write(group: Path, **files: str) -> None:
    """Write files of a group: the first `_` of a name becomes a point."""
    group.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (group / name.replace("_", ".", 1)).write_text(f"{text}\n")


def belongs_to(mount: Path, *lines: str) -> None:
    (mount.parent / "own").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("250000 100000", 2.5),
        ("25000 50000", 0.5),
        ("max 100000", None),
        ("100000 0", None),
        ("0 100000", None),
        ("100000", None),
        ("1 2 3", None),
        ("-1 100000", None),
        ("9" * 5000 + " 100000", None),
        ("\0\xff", None),
        ("", None),
    ],
)
def test_a_quota_of_version_2(mount: Path, text: str, quota: float | None) -> None:
    belongs_to(mount, "0::/")
    write(mount, cpu_max=text)
    assert cpu_quota() == quota


@pytest.mark.parametrize("tightest", ["", "pods", "pods/one", "pods/one/main"])
def test_the_tightest_quota_of_the_own_group_and_its_ancestors_holds(
    mount: Path, tightest: str
) -> None:
    belongs_to(mount, "0::/pods/one/main")
    for group in ("", "pods", "pods/one", "pods/one/main"):
        write(mount / group, cpu_max="300000 100000" if group == tightest else "800000 100000")
    write(mount / "pods" / "other", cpu_max="100000 100000")
    assert cpu_quota() == 3


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("group", ["", "docker", "docker/one"])
def test_a_quota_of_version_1(mount: Path, folder: str, group: str) -> None:
    belongs_to(mount, "3:cpuset:/", "2:cpu,cpuacct:/docker/one", "0::/")
    assert cpu_quota() is None
    write(mount / folder / group, cpu_cfs_quota_us="150000", cpu_cfs_period_us="100000")
    assert cpu_quota() == 1.5
    write(mount / folder / group, cpu_cfs_quota_us="-1")
    assert cpu_quota() is None


def test_a_container_of_version_1_sees_its_group_at_the_mount_and_not_under_the_path_of_the_host(
    mount: Path,
) -> None:
    belongs_to(mount, "4:memory:/docker/0123", "1:cpu:/docker/0123")
    write(mount / "cpu", cpu_cfs_quota_us="200000", cpu_cfs_period_us="100000")
    write(mount / "memory", memory_limit_in_bytes="5000", memory_usage_in_bytes="2000")
    assert cpu_quota() == 2
    assert memory_limits() == [MemoryLimit(5000, 3000)]


def test_a_group_outside_of_the_namespace_has_the_limits_at_the_mount(mount: Path) -> None:
    belongs_to(mount, "0::/../outside")
    write(mount.parent / "outside", cpu_max="100000 100000")
    write(mount / "outside", cpu_max="200000 100000")
    assert cpu_quota() is None
    write(mount, cpu_max="300000 100000")
    assert cpu_quota() == 3


def test_each_group_has_its_own_memory_limit(mount: Path) -> None:
    belongs_to(mount, "0::/slice/service")
    stat = "anon 5\ninactive_file 300\nactive_file 100\nslab"
    write(mount / "slice", memory_max="9000", memory_current="8500", memory_stat=stat)
    write(mount / "slice" / "service", memory_max="4000", memory_current="1000")
    assert memory_limits() == [MemoryLimit(4000, 3000), MemoryLimit(9000, 900)]
    write(mount / "slice" / "service", memory_max="max")
    assert memory_limits() == [MemoryLimit(9000, 900)]


def test_files_of_inner_groups_are_caches_too_in_version_1(mount: Path) -> None:
    belongs_to(mount, "4:memory:/one")
    stat = "inactive_file 1\nactive_file 2\ntotal_inactive_file 300\ntotal_active_file 100"
    write(
        mount / "memory" / "one",
        memory_limit_in_bytes="9000",
        memory_usage_in_bytes="8500",
        memory_stat=stat,
    )
    write(mount / "memory", memory_limit_in_bytes=NO_LIMIT, memory_usage_in_bytes="10000")
    assert memory_limits() == [MemoryLimit(9000, 900)]


def test_files_with_something_else_limit_no_memory(mount: Path) -> None:
    assert memory_limits() == []  # there is no file at all
    belongs_to(mount, "rubbish", "0::/a:b")
    write(mount, memory_max="1e9", memory_current="1")
    (mount / "a:b" / "memory.max").mkdir(parents=True)
    assert memory_limits() == []
    write(mount, memory_max="1000", memory_current="?", memory_stat="active_file\nactive_file ?")
    assert memory_limits() == [MemoryLimit(1000, 1000)]
    write(mount, memory_current="500", memory_stat="active_file 700")
    assert memory_limits() == [MemoryLimit(1000, 1000)]  # never more than the limit
    write(mount, memory_current="1500", memory_stat="active_file 100")
    assert memory_limits() == [MemoryLimit(1000, 0)]


def test_a_read_is_bounded(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_MOST", 4)
    mount.parent.joinpath("own").write_text("0::/" + "a" * 100)
    write(mount, memory_max="123456789")
    assert memory_limits() == [MemoryLimit(1234, 1234)]
