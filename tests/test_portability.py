"""Calls that only Linux has are guarded: without them the program does the same or says less."""

from __future__ import annotations

import io
import json
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gguf_writer import write_gguf
from heddle import cgroups, cores
from heddle.extensions.bench.machine import describe
from heddle.extensions.bench.other_work import OtherWork
from heddle.text.constrained import trial
from heddle.weights.gguf.file import GGUFFile

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[1]
LINUX_ONLY = (
    "sched_getaffinity",
    "sched_setaffinity",
    "preadv",
    "posix_fadvise",
    "MADV_HUGEPAGE",
    "MADV_POPULATE_WRITE",
    "SYS_gettid",
    "getauxval",
)
"""Names whose use needs a guard: `hasattr` in Python, `#if` in C++."""


def test_without_affinity_and_files_of_linux_all_cores_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(cores, "_DEVICES", tmp_path)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_sysctl", None)
    assert cores.usable_cores() == os.cpu_count()
    assert describe()["cores"] == os.cpu_count()


def test_a_file_is_read_without_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv", raising=False)
    path = write_gguf(tmp_path / "model.gguf", {"general.architecture": "llama"})
    with GGUFFile.open(path) as file:
        assert file.metadata["general.architecture"] == "llama"


def test_without_proc_other_work_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists
    monkeypatch.setattr(
        Path, "exists", lambda path: not str(path).startswith("/proc") and exists(path)
    )
    assert OtherWork().share() is None
    assert describe()["memory_bytes"] > 0


def test_a_system_that_refuses_to_limit_address_space_still_tries_grammars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(kind: int, _limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")

    settings = [1.0, {"vocab_size": 3, "eos_ids": [2], "specials": {"2": "<e>"}, "ids": {}}]
    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(settings) + "\n"))
    monkeypatch.setattr(trial, "ByteTokens", lambda **_: None)
    monkeypatch.setattr(trial, "GrammarCompiler", lambda *_, **__: None)
    trial.main()
    assert capsys.readouterr().out == '""\n'


def test_every_call_that_only_linux_has_stands_behind_a_guard() -> None:
    bare = []
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text("utf-8")
        calls = [name for name in LINUX_ONLY if f"os.{name}(" in text]
        bare += [f"{path.name}: {name}" for name in calls if f'hasattr(os, "{name}")' not in text]
    for path in (ROOT / "native").iterdir():
        depth = 0  # of #if blocks
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            code = line.partition("//")[0].strip()
            depth += code.startswith("#if") - code.startswith("#endif")
            if depth == 0:
                bare += [f"{path.name}:{number}: {name}" for name in LINUX_ONLY if name in code]
    assert bare == []
