"""The code in README.md and docs/ runs as it stands, on the default model.

The Python blocks and the `curl` commands of a page run in order, the blocks in one namespace. For
`http://127.0.0.1:8080` the test puts the address of a server with default settings. Other shell
commands do not run. The code of docs/guides/clients.md runs in `tests/conformance/programs`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from anthropic import Anthropic
from openai import OpenAI

from configs import server_config
from heddle import LLM, Engine
from heddle.config import DEFAULT_MODEL
from live_server import live_server
from lora_writer import peft_tensors, write_peft
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8080"
QUERIES = "model.layers.0.self_attn.q_proj"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page that it begins at."""

    language: str
    text: str
    line: int


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page. None may be indented, so that none is missed."""
    blocks = [
        Block(match[1], match[2], page.count("\n", 0, match.start(2)) + 1)
        for match in _FENCE.finditer(page)
    ]
    assert page.count("```") == 2 * len(blocks)
    return blocks


def commands_of(script: str) -> Iterator[list[str]]:
    """The words of each command of a shell block. A command goes on while a quote is open."""
    lines: list[str] = []
    for line in script.splitlines():
        lines.append(line)
        try:
            words = shlex.split("\n".join(lines), comments=True)
        except ValueError:
            continue
        if not line.endswith("\\"):
            yield words
            lines.clear()
    assert not lines, "a command has no end"


def runnable(block: Block) -> bool:
    """Whether the tests can run it, or a part of it."""
    return block.language == "python" or (
        block.language == "sh" and any(words[:1] == ["curl"] for words in commands_of(block.text))
    )


PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.name != "clients.md" and any(map(runnable, blocks_of(path.read_text("utf-8"))))
]


def send(words: list[str]) -> None:
    """Send what `curl` would with these arguments. The answer must be no error."""
    method, url, headers, body = None, "", {}, None
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # curl's default for a body
    rest = iter(words)
    for word in rest:
        match word:
            case "-N" | "-s":
                pass
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            case "-d":
                body = next(rest)
            case _:
                assert not word.startswith("-") and not url, f"curl {word} is not known here"
                url = word
    method = method or ("GET" if body is None else "POST")
    headers = headers if body is None else form | headers
    answer = httpx.request(method, url, headers=headers, content=body, timeout=PATIENCE)
    assert answer.is_success, f"{shlex.join(words)}: {answer.status_code} {answer.text}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the code, with an adapter of the default model."""
    folder = tmp_path_factory.mktemp("pages")
    side = np.zeros((1, 576), np.float32)
    write_peft(folder / "my-adapter", peft_tensors({QUERIES: (side, side.T)}), r=1)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    config = server_config(port=0, slot_save_path=str(folder))
    with Engine.load(DEFAULT_MODEL) as engine, live_server(engine, config) as live:
        engine.load_adapter("poems", folder / "my-adapter")
        yield live.url


def test_the_pages_with_code_are_found() -> None:
    names = {path.name for path in PAGES}
    assert names >= {"README.md", "embeddings.md", "sequence.md", "serving.md"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_code_on_a_page_runs(
    path: Path, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    page = path.read_text("utf-8").replace(ADDRESS, address)
    namespace: dict[str, Any] = {"__name__": path.stem}
    made: list[Any] = []  # also what a later block has replaced
    try:
        for block in filter(runnable, blocks_of(page)):
            if block.language == "python":
                # Empty lines before it, so that a traceback names the page's own line.
                code = "\n" * (block.line - 1) + block.text
                exec(compile(code, str(path), "exec", dont_inherit=True), namespace)
                made += namespace.values()
            else:
                for words in commands_of(block.text):
                    if words[:1] == ["curl"]:
                        send(words[1:])
    finally:
        for value in made:
            if isinstance(value, (LLM, Engine, OpenAI, Anthropic)):
                value.close()
            elif type(value).__module__.partition(".")[0] in ("ollama", "langchain_ollama"):
                value._client.close()
