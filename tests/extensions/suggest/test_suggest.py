"""The advice for users who did not name a model, and the table of recommended models."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.cli import newcomer, run
from heddle.config import DEFAULT_MODEL
from heddle.doors import architectures
from heddle.extensions.suggest import command
from heddle.extensions.suggest.machine import Machine, this_machine
from heddle.extensions.suggest.suggestions import (
    EMBEDDINGS,
    RERANKERS,
    SUGGESTIONS,
    Suggestion,
    best_embeddings_for,
    best_for,
    rows,
)
from heddle.weights.catalog import ALIASES
from heddle.weights.hub.names import parse

ROOT = Path(__file__).parents[3]
GB = 10**9


@pytest.mark.parametrize(
    ("memory", "rate", "expected"),
    [
        (0, 90 * GB, DEFAULT_MODEL),
        (6 * GB, 17 * GB, "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        (15 * GB, 17 * GB, "Qwen/Qwen3-4B-GGUF:Q4_K_M"),  # a larger one is too slow
        (15 * GB, 60 * GB, "Qwen/Qwen3-14B-GGUF:Q4_K_M"),
        (23 * GB, 17 * GB, "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M"),
        (23 * GB, 9 * GB, "Qwen/Qwen3-1.7B-GGUF:Q8_0"),
        (23 * GB, 0.1 * GB, DEFAULT_MODEL),
    ],
)
def test_the_suggestion_fits_the_machine(memory: int, rate: float, expected: str) -> None:
    assert best_for(memory, rate).name == expected


@pytest.mark.parametrize(
    ("memory", "rate", "expected"),
    [
        (0, 90 * GB, "sentence-transformers/all-MiniLM-L6-v2"),
        (GB // 2, 17 * GB, "nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0"),
        (64 * GB, 17 * GB, "Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0"),  # a larger one is too slow
        (6 * GB, 90 * GB, "Qwen/Qwen3-Embedding-4B-GGUF:Q4_K_M"),
        (64 * GB, 90 * GB, "Qwen/Qwen3-Embedding-8B-GGUF:Q4_K_M"),
        (64 * GB, 0.1 * GB, "sentence-transformers/all-MiniLM-L6-v2"),
    ],
)
def test_the_suggestion_for_embeddings_fits_the_machine(
    memory: int, rate: float, expected: str
) -> None:
    assert best_embeddings_for(memory, rate).name == expected


@pytest.mark.parametrize("suggestions", [SUGGESTIONS, EMBEDDINGS, RERANKERS])
def test_suggestions_can_be_loaded_and_fit_their_memory(suggestions: tuple[Suggestion]) -> None:
    for one in suggestions:
        is_file = one.name in ALIASES or ":" in one.name
        assert one.architecture in architectures("gguf" if is_file else "hf")
        assert one.name in ALIASES or parse(one.name) is not None
        assert one.read <= one.file
        assert one.file + one.cache + 0.2 <= one.memory
    assert sorted(suggestions, key=lambda one: one.memory) == list(suggestions)


def test_the_first_suggestion_is_the_default_model() -> None:
    assert SUGGESTIONS[0].name == DEFAULT_MODEL


def test_the_readme_has_the_table() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for memory, name, file, note in rows():
        assert f"| {memory} | `{name}` | {file} | {note} |" in readme


def test_suggest_shows_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "this_machine", lambda: Machine(6 * GB, 17.4 * GB))
    assert run(["suggest"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SUGGESTIONS) + 5
    speeds = [line.split()[5] for line in lines[1 : len(SUGGESTIONS) + 1]]
    assert speeds == ["174", "29", "16", "9.7", "7.0", "3.7", "2.0", "8.7"]
    assert "this machine reads 17.4 GB/s from memory (measured now)" in lines[-3]
    assert lines[-1].endswith(
        "(6 GB free, reads 17 GB/s): heddle serve Qwen/Qwen3-4B-GGUF:Q4_K_M (at most 7.0 tokens/s)"
    )


def test_suggest_shows_models_for_embeddings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "this_machine", lambda: Machine(6 * GB, 17.4 * GB))
    assert run(["suggest", "--embeddings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[2] for line in lines[1:-4]]
    assert names == [one.name for one in (*EMBEDDINGS, *RERANKERS)]
    assert lines[0].split() == ["memory", "model", "download", "queries/s", "for"]
    assert [line.split()[5] for line in lines[6:9]] == ["58", "35", "7.9"]
    assert lines[-3].startswith("queries/s: at most, for one short text after another.")
    assert lines[-1].endswith(
        "heddle serve Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0 (at most 35 queries/s)"
    )


def test_suggest_says_when_other_programs_disturb_the_measurement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for share in (0.05, 0.6):
        machine = Machine(6 * GB, 9 * GB, share)
        monkeypatch.setattr(command, "this_machine", lambda machine=machine: machine)
        assert run(["suggest"]) == 0
        said = "Other programs took 60% of the machine" in capsys.readouterr().out
        assert said == (share > 0.1)


def test_without_a_model_one_line_says_which_and_where_to_find_a_better_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert newcomer.chosen("org/name") == "org/name"
    assert capsys.readouterr() == ("", "")
    assert newcomer.chosen(None) == DEFAULT_MODEL
    assert capsys.readouterr().err == (
        "No model named: using smollm2-135m, a tiny model with poor answers."
        " heddle suggest names better ones for this machine.\n"
    )


def test_this_machine_is_measured() -> None:
    machine = this_machine()
    assert machine.available > 0
    assert 1e8 < machine.rate < 1e13
