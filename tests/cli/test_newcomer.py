"""The advice for users who did not name a model, and the table of recommended models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heddle.cli import newcomer, run
from heddle.config import DEFAULT_MODEL, HubConfig
from heddle.models.registry import FAMILIES
from heddle.weights.catalog import ALIASES
from heddle.weights.hub.names import parse
from heddle.weights.suggestions import SUGGESTIONS, best_for, rows

ROOT = Path(__file__).parents[2]
GB = 10**9


@pytest.mark.parametrize(
    ("memory", "cores", "offline", "expected"),
    [
        (0, 64, False, DEFAULT_MODEL),
        (3 * GB, 2, True, "qwen2.5-coder-1.5b"),
        (64 * GB, 64, True, "qwen2.5-coder-1.5b"),
        (6 * GB, 2, False, "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        (15 * GB, 2, False, "Qwen/Qwen3-4B-GGUF:Q4_K_M"),  # a larger one would answer slowly
        (15 * GB, 8, False, "Qwen/Qwen3-14B-GGUF:Q4_K_M"),
        (24 * GB, 2, False, "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M"),
    ],
)
def test_the_suggestion_fits_the_machine(
    memory: int, cores: int, offline: bool, expected: str
) -> None:
    assert best_for(memory, cores, offline=offline).name == expected


def test_suggestions_can_be_loaded_and_fit_their_memory() -> None:
    known = {name for family in FAMILIES for name in family.gguf}
    for one in SUGGESTIONS:
        assert one.architecture in known
        assert one.name in ALIASES or parse(one.name) is not None
        assert one.read <= one.file < one.memory
    assert SUGGESTIONS[0].name == DEFAULT_MODEL
    assert sorted(SUGGESTIONS, key=lambda one: one.memory) == list(SUGGESTIONS)


def test_the_readme_has_the_table() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for memory, name, file, note in rows():
        assert f"| {memory} | `{name}` | {file} | {note} |" in readme


def test_suggest_shows_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["heddle.cli.suggest"]  # its name in `heddle.cli` is the command's
    monkeypatch.setattr(module, "available_bytes", lambda: 6 * GB)
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    assert run(["suggest"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SUGGESTIONS) + 3
    assert lines[-1].endswith("(6 GB free, 4 cores): heddle serve Qwen/Qwen3-4B-GGUF:Q4_K_M")


def test_without_a_model_one_line_says_which_and_what_is_better(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newcomer, "available_bytes", lambda: 6 * GB)
    monkeypatch.setattr(newcomer, "usable_cores", lambda: 2)
    assert newcomer.chosen("org/name", HubConfig()) == "org/name"
    assert capsys.readouterr() == ("", "")
    assert newcomer.chosen(None, HubConfig()) == DEFAULT_MODEL
    assert capsys.readouterr().err == (
        "No model named: using smollm2-135m, a tiny model with poor answers. Better on this machine"
        " (6 GB free, 2 cores): heddle serve Qwen/Qwen3-4B-GGUF:Q4_K_M (2.5 GB to download). More:"
        " heddle suggest.\n"
    )
    monkeypatch.setattr(newcomer, "available_bytes", lambda: 0)
    newcomer.chosen(None, HubConfig())
    assert capsys.readouterr().err.endswith("poor answers.\n")
