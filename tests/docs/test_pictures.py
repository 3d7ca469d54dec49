"""Pages and pictures about the code agree with it: files, functions, the order of calls."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "draw_pictures.py"


@lru_cache
def script() -> dict[str, Any]:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return runpy.run_path(str(SCRIPT))
    finally:
        sys.path.remove(str(SCRIPT.parent))


HOPS = {hop.row: hop for hop in script()["hops"](script()["LIFE"].read_text("utf-8"))}


def source_of(file: str, function: str) -> str:
    """The text of a function; dots lead into its class or the function around it."""
    text = (ROOT / file).read_text("utf-8")
    if file.endswith(".cpp"):
        found = re.search(rf"^\S.* {re.escape(function)}\(.*?^}}$", text, re.MULTILINE | re.DOTALL)
        assert found, f"{file} has no function {function}"
        return found[0]
    body: list[ast.stmt] = ast.parse(text).body
    for name in function.split("."):
        inside = [node for node in body if getattr(node, "name", None) == name]
        assert inside, f"{file} has no {function}"
        (node,) = inside
        body = node.body  # type: ignore[attr-defined]
    return ast.unparse(node)


def names_in(source: str) -> Iterator[str]:
    """Names and attributes that a function uses, in the order of its text."""
    nodes = [x for x in ast.walk(ast.parse(source)) if isinstance(x, (ast.Name, ast.Attribute))]
    for node in sorted(nodes, key=lambda x: (x.end_lineno or 0, x.end_col_offset or 0)):
        yield node.id if isinstance(node, ast.Name) else node.attr


def test_the_life_of_a_token_begins_at_http_and_ends_at_the_event() -> None:
    assert list(HOPS) == list(range(1, len(HOPS) + 1))
    assert HOPS[1].function == "HTTPProtocol.data_received"
    assert HOPS[len(HOPS)].function == "event"


@pytest.mark.parametrize("row", HOPS)
def test_a_function_on_the_page_exists_and_its_caller_names_it(row: int) -> None:
    hop = HOPS[row]
    source_of(hop.file, hop.function)
    if hop.by is None:
        return
    assert hop.by < row, "a caller stands above what it calls"
    caller = HOPS[hop.by]
    name = re.split(r"\.|::", hop.function)[-1]
    around = source_of(caller.file, caller.function.rpartition(".")[0] or caller.function)
    inside = source_of(caller.file, caller.function)
    # A route may pass on a function that stands beside it, so calls there count for its row.
    assert name in set(names_in(inside)) or name in set(names_in(around)), (
        f"{caller.file}: {caller.function} does not call {name}"
    )


def test_calls_of_one_caller_stand_in_the_order_of_its_code() -> None:
    for row, caller in HOPS.items():
        if not caller.file.endswith(".py"):
            continue
        used = list(names_in(source_of(caller.file, caller.function)))
        called = [re.split(r"\.|::", hop.function)[-1] for hop in HOPS.values() if hop.by == row]
        places = [used.index(name) for name in called if name in used]
        assert places == sorted(places), f"{caller.function} calls {called} in another order"


def test_pictures_show_what_they_are_drawn_from() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_that_the_contributors_page_names_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = re.findall(r"`((?:src|tests|native|docs|scripts|\.ci)/[\w./-]*)", page)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_files_that_the_design_pages_name_exist() -> None:
    named: set[str] = set()
    for page in (
        "design",
        *(f"concepts/{name}" for name in ("extensions", "memory", "native")),
        *(f"reference/{name}" for name in ("limits", "glossary")),
    ):
        text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        named |= set(re.findall(r"`([\w./-]+(?:\.(?:py|h|cpp|sh|md)|/))`", text))
    assert len(named) > 60
    package = ROOT / "src" / "heddle"
    folders = (ROOT, package, package / "server")
    missing = [path for path in sorted(named) if not any((x / path).exists() for x in folders)]
    examples = [
        *(f"heddle_hello/{name}.py" for name in ("__init__", "api", "command")),
    ]
    assert missing == examples
