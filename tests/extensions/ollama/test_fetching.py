"""Answers of Ollama's routes about models that are not loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.ollama.fetching import facts_of
from heddle.hosting.registry import Registry
from heddle.weights.catalog import ALIASES, Part, Recipe
from tiny_hub import TINY

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_facts_have_the_sampling_parameters_of_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part("tiny==1.0", "tiny.gguf")
    row = Recipe("tiny", (part,), "tiny.gguf", sampling={"temperature": 0.2, "top_p": 0.9})
    monkeypatch.setitem(ALIASES, "tiny", row)
    monkeypatch.setenv("HEDDLE_HOME", str(tmp_path))
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "tiny.gguf").write_bytes(TINY)
    with Registry() as registry:
        facts = facts_of(registry, registry.add("tiny"))
    assert facts is not None
    assert facts.sampling == row.sampling
