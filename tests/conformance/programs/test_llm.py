"""The program `llm` with `extra-openai-models.yaml`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = {"chats": "", "completions": "completion: true", "responses": "responses: true"}


@pytest.fixture
def llm(server: str, tmp_path: Path) -> Callable[..., str]:
    """Runs the program with a folder of its own."""
    models = "".join(
        f"- model_id: {kind}\n  model_name: smollm2-135m\n  api_base: {server}/v1\n"
        f"  supports_tools: true\n  supports_schema: true\n  {line}\n"
        for kind, line in KINDS.items()
    )
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path)}

    def run(model: str, *words: str) -> str:
        command = [sys.executable, "-m", "llm", "-m", model, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("model", KINDS)
def test_a_prompt_streams_what_it_is_whole(llm: Callable[..., str], model: str) -> None:
    whole = llm(model, "--no-stream", "-o", "max_tokens", "8", "hello")
    assert whole.strip()
    assert llm(model, "-o", "max_tokens", "8", "hello").strip() == whole.strip()


def test_a_conversation_goes_on(llm: Callable[..., str]) -> None:
    first = llm("chats", "-s", "Be brief.", "-o", "max_tokens", "8", "-o", "stop", "zz", "hello")
    assert first.startswith("Hello")
    assert llm("chats", "-c", "-o", "max_tokens", "8", "And then?").strip()


def test_an_answer_follows_a_schema(llm: Callable[..., str]) -> None:
    answer = json.loads(
        llm("chats", "--schema", "name, age int", "-o", "max_tokens", "90", "a dog")
    )
    assert (type(answer["name"]), type(answer["age"])) == (str, int)


def test_tools_and_json_are_accepted(llm: Callable[..., str]) -> None:
    assert llm("chats", "-T", "llm_version", "-o", "max_tokens", "8", "hello")
    assert llm("chats", "-o", "json_object", "1", "-o", "max_tokens", "8", "JSON").startswith("{")
