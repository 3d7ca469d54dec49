"""The way of a chat through the code stays short, and the page about it shows what really runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]

MOST = {"in": (26, 80), "step": (23, 70), "out": (16, 50)}
"""Most files and functions of each part. A change that needs more should first look for calls that
only some requests need."""

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
    names = road[part]["names"]
    files, functions = MOST[part]
    assert len(names) <= files
    assert sum(map(len, names.values())) <= functions


def shown() -> set[tuple[str, str]]:
    """File and function of each row of the page that a chat of this test runs."""
    found = set()
    for line in (ROOT / "docs" / "index.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdecimal() and cells[3].endswith(".py") and cells[3] not in OTHER_WAYS:
            found.add((cells[3], cells[4]))
    return found


def run(road: dict[str, Any], parts: Iterable[str]) -> set[tuple[str, str]]:
    """File and function of all that a chat runs in these parts."""
    return {
        (f"src/heddle/{file}", name.replace(".<locals>", ""))
        for part in parts
        for file, names in road[part]["names"].items()
        for name in names
    }


def test_every_function_of_the_page_runs_in_a_chat(road: dict[str, Any]) -> None:
    assert len(shown()) > 60
    assert shown() - run(road, ["chat"]) == set()


def test_every_file_that_a_chat_runs_is_on_the_page(road: dict[str, Any]) -> None:
    files = {file for file, _ in run(road, MOST)}
    assert files - {file for file, _ in shown()} == set()
