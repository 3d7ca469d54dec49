"""Engram tables in the engine: which requests may use them, and which models they fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from configs import configured
from engram_writer import write_version_1, write_version_2
from fake_executor import VOCABULARY, FakeExecutor
from fake_loads import Loads
from fake_model import FakeTokenizer, fake_model
from heddle import LLM, Engine, Registry, RegistryConfig
from heddle.errors import (
    ConfigError,
    EngramError,
    EngramFileError,
    EngramNotFoundError,
    ForbiddenError,
    InvalidRequestError,
)
from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.engrams.format import vocabulary_fingerprint
from heddle.extensions.engrams.library import library_of, load_for_client, tables_of
from heddle.sampling_params import SamplingParams
from heddle.text.chat.template import ChatTemplate
from talking_model import LetterTokenizer

if TYPE_CHECKING:
    from pathlib import Path


FINGERPRINT = vocabulary_fingerprint(FakeTokenizer().vocabulary_entries())
AFTER_B = {(2,): {3: 3, 4: 1}}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_version_2(tmp_path / "docs.engr", AFTER_B, VOCABULARY, FINGERPRINT)


def start(*tables: str, model: Any = None, **settings: Any) -> Engine:
    config = configured(engram=tables, **settings)
    return Engine(model or fake_model(FakeExecutor()), config)


def bias_of(engine: Engine, **asked: Any) -> EngramBias | None:
    """The bias with which a request reaches the executor."""
    executor = engine.model.executor
    assert isinstance(executor, FakeExecutor)
    engine.complete("ab", SamplingParams.by_name(seed=1, max_tokens=1, **asked))
    return executor.slots[0].rules.of(EngramBias)


def test_a_request_names_its_tables(table: Path) -> None:
    with start(f"docs={table}", f"more={table}", engram_alpha=0.7) as engine:
        bias = bias_of(engine, engram="docs")
        assert bias is not None
        assert (bias.alpha, bias.literal, bias.opening) == (0.7, False, ())
        [(one, weight)] = bias.tables
        assert (one.predict([9, 2]), weight) == ([(3, 0.75), (4, 0.25)], 1.0)
        both = ["docs", {"name": "more", "weight": 3}]
        asked: dict[str, Any] = {"engram": both, "engram_alpha": 2, "engram_form": "literal"}
        bias = bias_of(engine, **asked)
        assert bias is not None
        assert (bias.alpha, bias.literal, [w for _, w in bias.tables]) == (2.0, True, [1.0, 3.0])
        assert bias_of(engine) is None


def test_an_unknown_name_is_refused_with_the_names_that_there_are(table: Path) -> None:
    with start(f"docs={table}", f"more={table}") as engine:
        with pytest.raises(InvalidRequestError, match="'dogs'; there is docs, more") as found:
            engine.complete("ab", SamplingParams.by_name(engram="dogs"))
        assert (found.value.status, found.value.param) == (400, "engram")


def test_a_table_of_another_vocabulary_is_refused_at_load(tmp_path: Path) -> None:
    other = bytes(range(32))
    path = write_version_2(tmp_path / "x.engr", AFTER_B, VOCABULARY, other)
    executor = FakeExecutor()
    with pytest.raises(ConfigError, match="for another vocabulary") as found:
        start(f"x={path}", model=fake_model(executor))
    for text in ("'x'", str(path), other.hex(), FINGERPRINT.hex(), "fake"):
        assert text in found.value.message
    assert executor.closed


def test_version_1_is_taken_only_unchecked(tmp_path: Path) -> None:
    path = write_version_1(tmp_path / "old.engr", AFTER_B)
    with pytest.raises(ConfigError, match=r"'old' .* version 1, .* --engram-unchecked"):
        start(f"old={path}")
    with start(f"old={path}", engram_unchecked=True) as engine:
        bias = bias_of(engine, engram="old")
        assert bias is not None
        assert bias.tables[0][0].predict([2]) == [(3, 0.75), (4, 0.25)]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("docs", "must be NAME=PATH, got 'docs'"),
        ("docs=", "must be NAME=PATH"),
        ("do cs={}", "must be 1 to 64 letters"),
        ("={}", "must be 1 to 64 letters"),
    ],
)
def test_a_setting_without_name_or_path_is_refused(entry: str, message: str, table: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        start(entry.format(table))


def test_two_tables_of_one_name_are_refused(table: Path) -> None:
    with pytest.raises(ConfigError, match="two tables of the name 'docs'"):
        start(f"docs={table}", f"docs={table}")


def test_a_missing_or_damaged_file_is_an_error_that_names_it(tmp_path: Path, table: Path) -> None:
    with pytest.raises(EngramError, match=r"gone\.engr is not a file"):
        start(f"docs={tmp_path / 'gone.engr'}")
    table.write_bytes(table.read_bytes()[:-8])
    with pytest.raises(EngramFileError, match=r"docs\.engr: length the file has") as found:
        start(f"docs={table}")
    assert found.value.field == "length"


def test_a_running_request_keeps_the_table_that_it_began_with(tmp_path: Path, table: Path) -> None:
    with start(f"docs={table}") as engine:
        library = tables_of(engine).library
        before = tables_of(engine).bias(SamplingParams.by_name(engram="docs"))
        changed = write_version_2(tmp_path / "b.engr", {(2,): {9: 1}}, VOCABULARY, FINGERPRINT)
        library.load("docs", changed)
        after = tables_of(engine).bias(SamplingParams.by_name(engram="docs"))
        library.unload("docs")
        changed.unlink()
        assert before is not None
        assert after is not None
        assert before.tables[0][0].predict([2]) == [(3, 0.75), (4, 0.25)]
        assert after.tables[0][0].predict([2]) == [(9, 1.0)]
        with pytest.raises(EngramNotFoundError, match="'docs'; there is none"):
            library.unload("docs")


def test_marks_of_reasoning_are_tokens_of_the_model(table: Path) -> None:
    tokenizer: Any = LetterTokenizer()
    tokenizer.vocabulary_entries = FakeTokenizer().vocabulary_entries
    template = ChatTemplate("{{ messages }}[THINK]x[/THINK]", "", "")
    model = replace(fake_model(FakeExecutor()), tokenizer=tokenizer, template=template)
    with start(f"docs={table}", model=model) as engine:
        outside = SamplingParams.by_name(engram="docs", engram_in_reasoning=False)
        bias = tables_of(engine).bias(outside)
        assert bias is not None
        opening, closing = tokenizer.encode("[THINK]"), tokenizer.encode("[/THINK]")
        assert (bias.opening, bias.closing) == (tuple(opening), tuple(closing))
        everywhere = tables_of(engine).bias(SamplingParams.by_name(engram="docs"))
        assert everywhere is not None
        assert everywhere.opening == ()


def test_a_driven_sequence_uses_them_too(table: Path) -> None:
    with start(f"docs={table}") as engine:
        sequence = engine.create_sequence(SamplingParams.by_name(seed=1, engram="docs"))
        sequence.decode_prompt([1, 2])
        sequence.sample_next()
        executor = engine.model.executor
        assert isinstance(executor, FakeExecutor)
        assert executor.slots[0].rules.of(EngramBias) is not None


def test_the_library_takes_tables_by_settings(table: Path) -> None:
    with LLM(start(f"docs={table}")) as llm:
        [output] = llm.generate("ab", llm.sampling_params(engram="docs", max_tokens=1))
        assert output.tokens


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    loads = Loads()
    monkeypatch.setattr(Engine, "load", loads)
    return loads


def test_models_of_a_registry_share_tables(loads: Loads, table: Path, tmp_path: Path) -> None:
    config = RegistryConfig(models_dir=str(tmp_path))
    with Registry(config, configured(engram=(f"docs={table}",))) as registry:
        one, two = registry.load("one"), registry.load("two")
        registry.check_libraries()
        params = SamplingParams.by_name(engram="docs")
        first, second = tables_of(one).bias(params), tables_of(two).bias(params)
        assert first is not None
        assert second is not None
        assert first.tables[0][0] is second.tables[0][0]
        load_for_client(registry, "again", table.name)
        assert library_of(registry).tables[-1].path == table
        assert library_of(registry).names == ("docs", "again")


def test_a_registry_refuses_what_fits_no_model(loads: Loads, tmp_path: Path) -> None:
    path = write_version_2(tmp_path / "x.engr", AFTER_B, VOCABULARY, bytes(32))
    config = RegistryConfig(models_dir=str(tmp_path))
    with Registry(config, configured(engram=(f"x={path}",))) as registry:
        registry.load("one")
        with pytest.raises(ConfigError, match="for another vocabulary"):
            registry.check_libraries()
        with pytest.raises(InvalidRequestError, match="for another vocabulary"):
            tables_of(registry.engine("one")).bias(SamplingParams.by_name(engram="x"))
        with pytest.raises(ConfigError, match="for another vocabulary"):
            load_for_client(registry, "y", "x.engr")
        assert library_of(registry).names == ("x",)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../x.engr", ForbiddenError),
        ("/etc/passwd", ForbiddenError),
        ("x.gguf", ForbiddenError),
        ("link.engr", ForbiddenError),
        ("x\0.engr", ForbiddenError),
        ("a" * 300 + ".engr", EngramNotFoundError),
        ("gone.engr", EngramNotFoundError),
    ],
)
def test_a_client_names_tables_of_the_models_folder_only(
    path: str, error: type[Exception], tmp_path: Path, loads: Loads
) -> None:
    inside, outside = tmp_path / "in", tmp_path / "x.engr"
    inside.mkdir()
    write_version_2(outside, AFTER_B, VOCABULARY, FINGERPRINT)
    (inside / "link.engr").symlink_to(outside)
    with Registry(RegistryConfig(models_dir=str(inside))) as registry:
        registry.load("one")
        with pytest.raises(error):
            load_for_client(registry, "x", path)
    with Registry(RegistryConfig()) as registry, pytest.raises(ForbiddenError, match="models-dir"):
        load_for_client(registry, "x", "x.engr")
