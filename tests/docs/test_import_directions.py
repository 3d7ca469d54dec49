"""What `scripts/check_imports.py` finds: directions inside of server/, and circles."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "check_imports.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_circles_are_found_however_long(script: dict[str, Any]) -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert script["circles"](graph) == [["a", "b", "c"], ["d", "e"]]
    assert script["circles"]({"a": {"b"}, "b": set()}) == []


@pytest.mark.parametrize(
    ("file", "module", "is_wrong"),
    [
        ("api/openai/chat.py", "heddle.server.generate.request", False),
        ("api/openai/chat.py", "heddle.server.api.openai.schemas", False),
        ("api/openai/chat.py", "heddle.server.api.anthropic.schemas", True),
        ("api/openai/chat.py", "heddle.server.app", True),
        ("generate/request.py", "heddle.server.http.body", False),
        ("generate/request.py", "heddle.server.api.openai.schemas", True),
        ("http/body.py", "heddle.server.generate.request", True),
        ("app.py", "heddle.server.api", False),
    ],
)
def test_directions_inside_of_the_server(
    script: dict[str, Any], file: str, module: str, is_wrong: bool
) -> None:
    path = script["PACKAGE"] / "server" / file
    assert (script["server_problem"](path, module) is not None) == is_wrong
