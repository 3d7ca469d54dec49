"""The settings `chat_template` and `chat_template_kwargs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from heddle.config import EngineConfig
from heddle.errors import ConfigError
from heddle.loading.load import load_model
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

ASKED = [{"role": "user", "content": "hello"}]
OWN = "own {{ mood }} {{ date_string }} {% for m in messages %}{{ m.content }}{% endfor %}"
OTHER = "other {{ mood }} {% for m in messages %}{{ m.content }}{% endfor %}"


def prompt(folder: Path, variables: dict[str, Any] | None = None, **settings: str) -> str:
    """The prompt for a conversation, from a tiny model with the template `OWN`."""
    PLAIN.write_folder(folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(OWN)
    model = load_model(folder / "model", EngineConfig(threads=1, slots=1, context=64, **settings))
    try:
        return model.chat_text(ASKED, variables=variables)
    finally:
        model.close()


def test_a_file_replaces_the_model_s_template(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(OTHER)
    settings = {"chat_template": str(tmp_path / "chat.jinja")}
    assert prompt(tmp_path, **settings) == "other  hello"
    settings["chat_template_kwargs"] = '{"mood": "calm"}'
    assert prompt(tmp_path, **settings) == "other calm hello"


def test_variables_of_a_request_override_those_of_the_server(tmp_path: Path) -> None:
    text = '{"mood": "calm", "date_string": "today"}'
    assert prompt(tmp_path, chat_template_kwargs=text) == "own calm today hello"
    told = prompt(tmp_path, {"mood": "glad"}, chat_template_kwargs=text)
    assert told == "own glad today hello"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"chat_template": "missing.jinja"}, "--chat-template: cannot read 'missing.jinja'"),
        ({"chat_template": "bad.jinja"}, "--chat-template .*bad.jinja: the chat template does not"),
        ({"chat_template_kwargs": "calm"}, "must be a JSON object, got 'calm'"),
        ({"chat_template_kwargs": "[1]"}, "must be a JSON object"),
    ],
)
def test_a_wrong_value_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jinja").write_text("{% if %}")
    with pytest.raises(ConfigError, match=said):
        prompt(tmp_path, **settings)
