"""Fingerprints of pages and of answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from configs import configured
from fake_executor import FakeExecutor
from fake_model import fake_model
from heddle.config import EngineConfig
from heddle.embedding import Pooling
from heddle.engine import Engine
from heddle.errors import ModelFileError
from heddle.loading import digests
from heddle.loading.fingerprint import answers_fingerprint, pages_fingerprint
from heddle.weights.files import FileStamp

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.loading.loaded_model import LoadedModel


def model_at(path: Path, **changes: Any) -> LoadedModel:
    """A model that was loaded from the file as it is now."""
    model = fake_model(FakeExecutor(), path=path)
    stamps = {path: FileStamp.of(path.stat())}
    return replace(model, info=replace(model.info, stamps=stamps), **changes)


def test_pages_have_other_fingerprints_with_other_weights_or_formats(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"weights")
    other.write_bytes(b"weight5")
    prints = [
        pages_fingerprint(fake_model(FakeExecutor(page_format=format), path=path))
        for path in (one, other)
        for format in ("f16", "q8_0")
    ]
    assert len(set(prints)) == 4
    assert pages_fingerprint(fake_model(FakeExecutor(page_format="f16"), path=one)) == prints[0]


def test_all_parts_of_a_file_count_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_PART", 4)
    monkeypatch.setattr(digests, "_BLOCK", 3)
    contents = [b"aaaabbbbcc", b"bbbbaaaacc", b"aaaabbbbcd", b"aaaabbbbccd", b"aaaabbbxcc", b""]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    prints = [pages_fingerprint(model_at(path)) for path in paths]
    assert len(set(prints)) == len(contents)
    paths[1].write_bytes(contents[0])
    assert pages_fingerprint(model_at(paths[1])) == prints[0]


@pytest.mark.extensions
def test_answers_have_other_fingerprints_with_other_settings(file: Path) -> None:
    plain, config = model_at(file), EngineConfig()
    engines = [
        (plain, config),
        (replace(plain, sampling_defaults={"temperature": 0.5}), config),
        (replace(plain, template=None), config),
        (replace(plain, pooling=Pooling.LAST), config),
        (replace(plain, shape=replace(plain.shape, context=128)), config),
        (plain, EngineConfig(max_output_tokens=7)),
        (plain, EngineConfig(chat_template_kwargs='{"a": 1}')),
        (plain, configured(engram=("a=b",))),
        (plain, configured(engram_alpha=0.5)),
    ]
    prints = [answers_fingerprint(model, config) for model, config in engines]
    assert len(set(prints)) == len(engines)


@pytest.mark.extensions
def test_settings_that_change_no_answer_do_not_count(file: Path) -> None:
    one = answers_fingerprint(model_at(file), EngineConfig())
    other = EngineConfig(slots=3, threads=2, batch_tokens=64, speculation="off", queue=1)
    assert answers_fingerprint(model_at(file), other) == one
    other = configured(draft="small", engram_unchecked=True)
    assert answers_fingerprint(model_at(file), other) == one


def test_a_file_that_has_changed_has_no_fingerprint(file: Path) -> None:
    model = model_at(file)
    file.write_bytes(b"other weights")
    with pytest.raises(ModelFileError, match="has changed"):
        pages_fingerprint(model)
    with Engine(model, EngineConfig()) as engine:
        assert engine.fingerprint is None
    file.unlink()
    with Engine(model, EngineConfig()) as engine:
        assert engine.fingerprint is None
