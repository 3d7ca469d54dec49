"""The Vercel AI SDK in Node, with a provider for OpenAI-compatible servers and two for Ollama."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

PROVIDERS = ["openai-compatible", "ollama-ai-provider-v2", "ai-sdk-ollama"]
FILES = Path(__file__).parent / "vercel"
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "clients.md"

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script and its packages."""
    folder = tmp_path_factory.mktemp("vercel")
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error"]
    subprocess.run(command, cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("provider", PROVIDERS)
def test_texts_objects_tools_and_vectors(server: str, folder: Path, provider: str) -> None:
    command = ["node", "ask.mjs", server, provider]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen["text"] == seen["streamed"] == ["The sky is a shade of blue.", "length", 8]
    assert seen["parts"] > 4
    assert seen["object"] == seen["streamedObject"] == {"name": "blue", "shade": "light"}
    assert seen["choice"] in ("red", "blue")
    assert seen["embeddings"] == [576, 2]
    assert seen["free"]
    if provider != "ai-sdk-ollama":
        assert seen["results"][0] == "sunny in Paris"
        assert seen["streamedResults"] == ["sunny in Paris"]


def test_the_code_in_the_documentation(server: str, folder: Path) -> None:
    [code] = re.findall(r"^```js\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (folder / "page.mjs").write_text(code.replace("http://127.0.0.1:8080", server))
    command = ["node", "page.mjs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 5
