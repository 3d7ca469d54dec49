"""`heddle config`: the settings that are in effect, and where each comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from heddle.cli import run
from heddle.cli.options import Sources
from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.cores import usable_cores
from heddle.settings import settings

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """port = 0
kv_cache = "2G"
samplers = ["top_k", "temperature"]
cors = [
  "localhost",
]
api_key = ["sk-one", "sk-two"]
default = "small"
[models."small one"]
source = "a.gguf"
max_gap_ms = 3
[models.other]
source = "b.gguf"
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "heddle.toml"
    file.write_text(TEXT)
    monkeypatch.setenv("HEDDLE_CONFIG", str(file))
    monkeypatch.setenv("HEDDLE_SLOTS", "9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return file


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["config", "--json", *arguments]) == 0
    known: dict[str, Any] = json.loads(capsys.readouterr().out)
    return known


def test_each_setting_says_where_it_comes_from(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = shown(capsys, "--queue", "5", "--no-prefix-cache")
    rows = {name: (row["value"], row["from"]) for name, row in known["settings"].items()}
    assert known["file"] == str(path)
    assert rows["queue"] == (5, "--queue")
    assert rows["slots"] == (9, "HEDDLE_SLOTS")
    assert rows["prefix_cache"] == (False, "--prefix-cache")
    assert rows["port"] == (0, f"{path}:1")
    assert rows["kv_cache"] == ("2G", f"{path}:2")
    assert rows["samplers"] == (["top_k", "temperature"], f"{path}:3")
    assert rows["cors"] == (["localhost"], f"{path}:4")
    assert rows["api_key"] == (["***", "***"], f"{path}:7")
    assert rows["max_body"] == ("32M", "default")
    assert rows["temperature"] == (None, "default")
    assert rows["threads"] == (usable_cores(), "machine")
    assert rows["default"] == ("small", str(path))
    assert known["models"]["small one"] == {
        "source": {"value": "a.gguf", "from": str(path)},
        "max_gap_ms": {"value": 3, "from": f"{path}:11"},
    }
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = shown(capsys, "--threads", "1")["settings"]
    assert offline["offline"] == {"value": True, "from": "HF_HUB_OFFLINE"}
    assert offline["threads"] == {"value": 1, "from": "--threads"}


def test_every_setting_of_a_server_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    configs = (EngineConfig, RegistryConfig, ServerConfig)
    names = [one.name for config in configs for one in settings(config)]
    assert sorted(shown(capsys)["settings"]) == sorted(names)
    assert run(["config"]) == 0
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()[1:-2]] == names
    assert table.endswith("\nfile: /dev/null\n")


@pytest.mark.parametrize("form", [[], ["--json"], ["--toml"]])
@pytest.mark.parametrize("by_option", [False, True])
def test_no_form_shows_a_secret(
    form: list[str], by_option: bool, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--admin-key", "sk-boss", "--api-key", "sk-three"] if by_option else []
    assert run(["config", *form, *options]) == 0
    out = capsys.readouterr().out
    assert "sk-" not in out
    assert "***" in out


def test_the_file_of_toml_gives_the_same_settings(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(TEXT.replace("api_key", "tags"))
    before = Sources({"queue": "5"}).read_again()
    assert run(["config", "--toml", "--queue", "5"]) == 0
    path.write_text(capsys.readouterr().out)
    monkeypatch.delenv("HEDDLE_SLOTS")
    after = Sources({}).read_again()
    for config in (EngineConfig(slots=9), RegistryConfig(), ServerConfig()):
        assert after.resolve(type(config)()) == before.resolve(config)
    assert after.resolve(EngineConfig()).slots == 9
    assert [(one.source, one.name, [*one.settings]) for one in after.file.models] == [
        ("a.gguf", "small one", ["max_gap_ms"]),
        ("b.gguf", "other", []),
    ]
    assert after.file.default == "small"
    path.write_text("models = ['a', 'b']")
    assert run(["config", "--toml"]) == 0
    assert '\nmodels = ["a", "b"]  # ' in capsys.readouterr().out


def test_wrong_settings_are_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "--toml", "--json"]) == 2
    assert "--json and --toml exclude each other" in capsys.readouterr().err
    path.write_text("keep_alive = 3")
    assert run(["config"]) == 2
    assert f"heddle: {path}:1: keep_alive 3 unloads" in capsys.readouterr().err
