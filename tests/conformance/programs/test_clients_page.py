"""The code of docs/guides/clients.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "clients.md").read_text("utf-8")
SECTIONS = [section.partition("\n") for section in PAGE.split("\n### ")[1:]]
BLOCKS = [
    (name, code)
    for name, _, text in SECTIONS
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]

pytestmark = pytest.mark.filterwarnings("default")


def test_the_blocks_are_found() -> None:
    names = [name for name, _ in BLOCKS]
    assert names == ["LiteLLM", "instructor", "pydantic-ai", "OpenAI Agents SDK"]


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_a_block_runs(
    server: str, name: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    space: dict[str, Any] = {"__name__": "page"}
    page = code.replace("http://127.0.0.1:8080", server)
    exec(compile(page, name, "exec", dont_inherit=True), space)
    assert len(capsys.readouterr().out) > 5
