"""Findings of `scripts/check_imports.py`: directions inside of server/, and circles."""

from __future__ import annotations

import ast
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
        ("api/openai/chat.py", "heddle.server.api.native.models", True),
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


@pytest.mark.parametrize(
    ("file", "module", "is_wrong"),
    [
        ("engine/engine.py", "heddle.extensions.torch.load", True),
        ("doors.py", "heddle.extensions.torch", True),
        ("engine/engine.py", "heddle.doors", False),
        ("extensions/torch/load.py", "heddle.extensions.torch.parallel", False),
        ("extensions/torch/load.py", "heddle.extensions.processes.load", False),
        ("extensions/torch/load.py", "heddle.extensions.drafters.head", True),
        ("extensions/ollama/models.py", "heddle.hosting.registry", False),
        ("extensions/__init__.py", "heddle.extensions.ollama", True),
        ("scheduler/queue.py", "numpy", True),
    ],
)
def test_the_core_imports_no_extension(
    script: dict[str, Any], file: str, module: str, is_wrong: bool
) -> None:
    assert (script["problem_of"](script["PACKAGE"] / file, module) is not None) == is_wrong


def test_a_text_that_names_an_extension_counts(script: dict[str, Any]) -> None:
    tree = ast.parse('device = "heddle.extensions.torch.load:load"')
    assert script["named_modules"](tree) == [(1, "heddle.extensions.torch.load")]
