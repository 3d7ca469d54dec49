"""The unit of systemd: systemd takes it, it is well confined, and a server works within it."""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from deployed import DEPLOY, END_SECONDS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNIT = DEPLOY / "systemd" / "heddle.service"
MOST_EXPOSURE = 20
"""Tenths, of 100: `systemd-analyze security` calls up to 20 safe for what listens on a network."""

CONFINED = """
import ctypes, os, sys
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE, ERRNO_EPERM = 38, 65, 0x00050001
libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL(sys.argv[1])
seccomp.seccomp_init.restype = ctypes.c_void_p
filter = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(ERRNO_EPERM)))
ALLOW = ctypes.c_uint32(0x7FFF0000)
for name in sys.argv[2].split(","):
    number = seccomp.seccomp_syscall_resolve_name(name.encode())
    if number >= 0:
        assert seccomp.seccomp_rule_add(filter, ALLOW, number, 0) == 0
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
libc.prctl(PR_SET_MDWE, 1, 0, 0, 0)  # Linux 6.3 and newer
assert seccomp.seccomp_load(filter) == 0
try:
    os.chroot("/")
except PermissionError:
    os.execv(sys.executable, [sys.executable, "-m", "heddle", *sys.argv[3:]])
"""
"""Starts a server as systemd would: with its filter, and without memory that takes new code."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words], check=False, capture_output=True, text=True, timeout=PATIENCE
    )


def service() -> dict[str, list[str]]:
    """The values of each key of the section [Service]."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text("utf-8"), re.M):
        found.setdefault(key, []).append(value)
    return found


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    text = UNIT.read_text("utf-8").replace("/opt/heddle/bin/heddle", sys.executable)
    copy.write_text(text)
    verified = analyze("verify", "--man=no", str(copy))
    assert (verified.returncode, verified.stderr) == (0, "")


@needs_systemd
def test_the_unit_is_well_confined() -> None:
    judged = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSURE}", str(UNIT))
    assert judged.returncode == 0, judged.stdout[-2000:]


def test_the_server_is_not_killed_while_it_drains() -> None:
    unit = service()
    drain = re.search(r"\bHEDDLE_DRAIN=(\d+)", unit["Environment"][0])
    assert drain
    assert int(unit["TimeoutStopSec"][0]) > int(drain[1]) + END_SECONDS
    assert unit["KillMode"] == ["mixed"]  # children end after the server, not before it


def allowed() -> set[str]:
    """The names of system calls that the unit's filter lets through."""
    names: set[str] = set()
    for row in service()["SystemCallFilter"]:
        for group in row.removeprefix("~").split():
            calls = set(members(group))
            names = names - calls if row.startswith("~") else names | calls
    return names


def members(group: str) -> Iterator[str]:
    """The system calls of a group, and of the groups that it names."""
    lines = (line.strip() for line in analyze("syscall-filter", group).stdout.splitlines()[1:])
    for line in lines:
        if line.startswith("@"):
            yield from members(line)
        elif line and not line.startswith("#"):
            yield line


@needs_systemd
@pytest.mark.model
def test_a_server_answers_within_the_filter(model_path: Path) -> None:
    library = ctypes.util.find_library("seccomp")
    if library is None or os.geteuid():
        pytest.skip("needs libseccomp, and root to see that the filter holds")
    serve = ["serve", str(model_path), "--port", "0", "--slots", "2"]
    command = [sys.executable, "-c", CONFINED, library, ",".join(sorted(allowed())), *serve]
    body = {
        "messages": [{"role": "user", "content": "Name a colour."}],
        "max_tokens": 12,
        "response_format": {"type": "json_object"},  # a child process tries the grammar
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = next((line for line in process.stdout if line.startswith("ready")), None)
            assert ready is not None, "the server did not start within the filter"
            url = ready.split()[1] + "/chat/completions"
            answer = httpx.post(url, json=body, timeout=PATIENCE)
            assert answer.status_code == 200, answer.text
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
