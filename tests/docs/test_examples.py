"""Each program of examples/ runs as it stands and prints what its docstring shows.

The engine's bits do not depend on the machine, so the texts must be equal. Times, numbers of steps
and the order in which streams advance differ from run to run.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heddle import Engine
from heddle.config import DEFAULT_MODEL
from live_server import live_server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.model

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
_DIFFERS = re.compile(r"\d+(?= steps\b| ms\b)|(?<=order of arrival: )\w+")


def shown(program: Path) -> str:
    """The output that the docstring says the program prints."""
    text = ast.get_docstring(ast.parse(program.read_text("utf-8"))) or ""
    return text.partition(f"$ python examples/{program.name}\n")[2]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Engine.load(DEFAULT_MODEL) as engine, live_server(engine) as live:
        yield live.url


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_an_example_prints_what_its_docstring_shows(program: Path, address: str) -> None:
    is_client = "sys.argv" in program.read_text("utf-8")
    done = subprocess.run(
        [sys.executable, str(program), *([address] if is_client else [])],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.rstrip()
    assert printed
    assert _DIFFERS.sub("#", printed) == _DIFFERS.sub("#", shown(program))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_an_example_is_short_and_its_readme_lists_it(program: Path) -> None:
    lines = program.read_text("utf-8").splitlines()
    docstring = ast.parse("\n".join(lines)).body[0]
    assert len(lines) - (docstring.end_lineno or 0) < 40
    assert f"[{program.name}]({program.name})" in (EXAMPLES / "README.md").read_text("utf-8")
