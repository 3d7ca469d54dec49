"""The description of the machine in a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from heddle.extensions.bench.machine import describe
from heddle.extensions.bench.other_work import OtherWork


def test_a_description_says_what_matters() -> None:
    machine = describe("pytest", "no-such-package")
    assert machine["cpu"]
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["memory_bytes"] > 1 << 28
    assert machine["packages"]["pytest"].count(".") >= 1
    assert machine["packages"]["no-such-package"] is None
    assert json.loads(json.dumps(machine)) == machine


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
