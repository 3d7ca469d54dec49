"""The way of a chat through the code stays short, and the page about it shows what really runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

MOST = {"in": (38, 94), "step": (22, 70), "out": (23, 60)}
"""Most files and functions of each part; docs/design.md has the goals. A change that needs more
should first look for calls that only some requests need."""

OTHER_WAYS = {
    "src/heddle/executors/cpu/executor.py",  # the tests' executor computes in its place
}


@pytest.fixture(scope="module")
def road() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "road.py"), "--list"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("part", MOST)
def test_a_chat_runs_few_functions_in_few_files(road: dict[str, Any], part: str) -> None:
    files, functions = MOST[part]
    assert road[part]["files"] <= files
    assert road[part]["functions"] <= functions


def test_every_function_of_the_page_runs_in_a_chat(road: dict[str, Any]) -> None:
    run = {
        (f"src/heddle/{file}", name.replace(".<locals>", ""))
        for part in road.values()
        for file, names in part["names"].items()
        for name in names
    }
    shown = set()
    for line in (ROOT / "docs" / "index.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdecimal() and cells[3].endswith(".py") and cells[3] not in OTHER_WAYS:
            shown.add((cells[3], cells[4]))
    assert len(shown) > 30
    assert shown - run == set()
