"""The description of the machine in a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from heddle.cores import Cores
from heddle.extensions.bench import machine
from heddle.extensions.bench.machine import cores_of, describe
from heddle.extensions.bench.other_work import OtherWork

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_description_says_what_matters() -> None:
    described = describe("pytest", "no-such-package")
    assert described["cpu"]
    assert 1 <= described["cores"] <= len(os.sched_getaffinity(0))
    assert described["memory_bytes"] > 1 << 28
    assert described["packages"]["pytest"].count(".") >= 1
    assert described["packages"]["no-such-package"] is None
    assert json.loads(json.dumps(described)) == described


def test_a_description_says_which_processors_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine, "choose_cores", lambda: Cores((0, 1), 4, ("hyper-threads left out",))
    )
    assert cores_of(describe()) == "2 cores (of 4 processors: hyper-threads left out)"
    monkeypatch.setattr(machine, "choose_cores", lambda: Cores((0, 1), 2, ()))
    assert cores_of(describe()) == "2 cores"


def test_a_description_names_the_flags_of_an_arm_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n\nprocessor\t: 1\n")
    monkeypatch.setattr(machine, "Path", lambda _: file)
    assert describe()["flags"] == ["asimddp", "i8mm"]


def test_work_of_those_who_take_part_is_not_others_work() -> None:
    spin = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    child = subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    others, all_others = OtherWork([child.pid]), OtherWork()
    assert child.stdout is not None
    child.stdout.readline()
    excluded, counted = others._seconds(), all_others._seconds()  # what comes between adds to it
    assert excluded is not None
    assert counted is not None
    assert counted - excluded > 0.2
    assert None not in (others.share(), all_others.share())
    child.communicate()
