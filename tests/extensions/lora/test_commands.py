"""`heddle chat`, `heddle serve` and `heddle bench` with adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle.cli import run
from lora_writer import changes_of, peft_tensors, write_peft
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIONS = ["--threads", "2", "--kv-cache", "4M"]
CHAT = ["--temperature", "0", "--max-tokens", "6"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = PLAIN.write_folder(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    return str(folder)


@pytest.fixture
def entries(tmp_path: Path) -> list[str]:
    """The options that name two adapters."""
    made = [
        write_peft(tmp_path / name, peft_tensors(changes_of(PLAIN, seed=seed)))
        for seed, name in enumerate(("one", "two"))
    ]
    return [option for path in made for option in ("--lora", f"{path.name}={path}")]


@pytest.fixture
def says(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """The lines that a chat prints, after lines that the user types."""

    def talk(options: list[str], *typed: str) -> list[str]:
        lines = iter([*typed, "/exit"])
        monkeypatch.setattr("builtins.input", lambda _prompt="": next(lines))
        assert run(["chat", model, *OPTIONS, *CHAT, *options]) == 0
        return capsys.readouterr().out.splitlines()

    return talk


def test_a_chat_has_its_only_adapter(says: Callable[..., list[str]], entries: list[str]) -> None:
    [plain] = says([], "ABC")
    [one] = says(entries[:2], "ABC")
    [two] = says(entries[2:], "ABC")
    assert len({plain, one, two}) == 3
    asks = "ABC", "/adapter one", "ABC", "/adapter two", "ABC", "/adapter", "ABC"
    assert says(entries, *asks) == [plain, one, two, plain]


def test_an_unknown_adapter_changes_nothing(
    model: str,
    entries: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = iter(["ABC", "/adapter three", "ABC", "/exit"])
    monkeypatch.setattr("builtins.input", lambda _prompt="": next(lines))
    assert run(["chat", model, *OPTIONS, *CHAT, *entries[:2]]) == 0
    shown = capsys.readouterr()
    assert "'three'; there is one" in shown.err
    first, second = shown.out.splitlines()
    assert first == second


@pytest.mark.parametrize("command", [["chat"], ["serve", "--port", "0"]])
def test_a_wrong_path_fails_at_the_start(
    model: str, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = f"one={tmp_path / 'gone'}"
    assert run([command[0], model, *command[1:], *OPTIONS, "--lora", wrong]) == 2
    assert f"--lora {wrong}: " in capsys.readouterr().err


def test_a_benchmark_takes_adapters(
    model: str, entries: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--streams", "1", "--prompt-tokens", "9", "--new-tokens", "3", "--rounds", "1"]
    asked = ["bench", model, *OPTIONS, *small, "--depths", "0", *entries]
    assert run(asked) == 0, capsys.readouterr().err
