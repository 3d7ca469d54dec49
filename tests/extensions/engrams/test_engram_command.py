"""`heddle engram`, with the tokenizer of a tiny model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tokenizers import pre_tokenizers

from engram_writer import version_1, version_2
from gguf_writer import write_gguf
from heddle.cli import run

if TYPE_CHECKING:
    from pathlib import Path

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
"""The tokens of the model: bytes. The id of a letter is its place."""


def ids(text: str) -> tuple[int, ...]:
    return tuple(LETTERS.index(letter) for letter in text.replace(" ", "Ġ"))


def write_model(path: Path, tokens: list[str]) -> str:
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": []}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    write_gguf(path, {"general.architecture": "llama", **metadata}, [])
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "model.gguf", LETTERS)


@pytest.fixture
def table(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> str:
    """A table of two texts, with n-grams of 1 to 3 bytes."""
    (tmp_path / "a.txt").write_text("abcabd", "utf-8")
    (tmp_path / "b.txt").write_text("abc ab", "utf-8")
    texts = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    output = str(tmp_path / "x.engr")
    assert run(["engram", "build", *texts, "-o", output, "--model", model]) == 0
    out, err = capsys.readouterr()
    assert out == f"{output}  0.0 MB; n-grams by tokens: 4 of 1, 5 of 2, 5 of 3\n"
    assert "counting 2 texts" in err
    return output


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["engram", *arguments]) == 0
    return str(capsys.readouterr().out)


def described(table: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict:
    return json.loads(shown(["inspect", table, "--json", *more], capsys))


def test_inspect_shows_ngrams_as_text(table: str, model: str, capsys) -> None:
    out = shown(["inspect", table, "--model", model, "--find", "zzab", "--show", "1"], capsys)
    assert "version 2\nvocabulary: 256 tokens" in out
    assert "; the model has it\n" in out
    assert "most frequent n-grams of length 2:\n  3  " in out
    assert 'after "zzab": "ab" -> "c" 67%, "d" 33%' in out


def test_inspect_without_a_model_shows_ids(table: str, capsys) -> None:
    a, b, c = ids("abc")
    assert f"{a} {b} -> {c} 67%" in shown(["inspect", table], capsys)
    found = described(table, capsys)
    assert (found["version"], found["shortest"], found["longest"]) == (2, 1, 3)
    assert (found["entries"], found["table_size"], found["fits"]) == (14, 32, None)
    assert [order["total"] for order in found["orders"]] == [10, 8, 6]
    assert [a, b] in [top["ngram"] for top in found["orders"][1]["top"]]


def test_inspect_says_that_a_model_does_not_fit(table: str, tmp_path: Path, capsys) -> None:
    other = write_model(tmp_path / "other.gguf", LETTERS[::-1])
    assert described(table, capsys, "--model", other)["fits"] is False
    assert "the model has another one" in shown(["inspect", table, "--model", other], capsys)
    assert run(["engram", "inspect", table, "--model", other, "--find", "a"]) == 2
    assert "was built for another vocabulary" in capsys.readouterr().err


def test_version_1_is_written_and_inspected(table: str, model: str, tmp_path: Path, capsys) -> None:
    output = tmp_path / "one.engr"
    shown(
        ["build", str(tmp_path / "a.txt"), "-o", str(output), "--model", model, "--format", "1",
         "--order", "2"],
        capsys,
    )  # fmt: skip
    a, b, c, d = ids("abcd")
    expected = {(a, b): {c: 1, d: 1}, (b, c): {a: 1}, (c, a): {b: 1}}
    assert output.read_bytes() == version_1(expected)
    out = shown(["inspect", str(output), "--model", model, "--find", "ab"], capsys)
    assert "vocabulary: not known; version 1 does not say" in out
    assert '-> "c" 50%, "d" 50%' in out


def test_merge_and_prune(table: str, tmp_path: Path, capsys) -> None:
    both, small = str(tmp_path / "both.engr"), str(tmp_path / "small.engr")
    shown(["merge", table, table, "-o", both, "--weight", "1", "--weight", "9"], capsys)
    assert [order["total"] for order in described(both, capsys)["orders"]] == [100, 80, 60]
    arguments = ["--min-count", "30", "--top", "1", "--shortest", "2"]
    shown(["prune", both, "-o", small, *arguments], capsys)
    (a, b, c), found = ids("abc"), described(small, capsys)["orders"]
    assert [(order["order"], order["entries"]) for order in found] == [(2, 1), (3, 0)]
    assert found[0]["top"][0]["ngram"] == [a, b]
    assert found[0]["top"][0]["followers"] == [[c, 20]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["build", "absent", "-o", "x", "--model", "m"], "'absent' does not exist"),
        (
            ["build", "absent", "-o", "x", "--model", "m", "--memory", "much"],
            "'much' is not a size",
        ),
        (["build", "absent", "-o", "x", "--model", "m", "--shortest", "4"], "4 to 3 tokens"),
        (["build", "absent", "-o", "x"], "--model"),
        (["inspect", "absent"], "absent is not a file"),
        (["inspect", "absent", "--find", "x"], "--find needs --model"),
        (
            ["merge", "absent", "-o", "x", "--weight", "1", "--weight", "2"],
            "2 weights for 1 table",
        ),
        (["prune", "absent", "-o", "x"], "absent is not a file"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], says: str, capsys) -> None:
    assert run(["engram", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err


def test_a_damaged_table_is_named(tmp_path: Path, capsys) -> None:
    (tmp_path / "x.engr").write_bytes(version_2({(1, 2): {3: 4}})[:-4])
    for command in (["inspect"], ["prune", "-o", str(tmp_path / "y.engr")]):
        assert run(["engram", command[0], str(tmp_path / "x.engr"), *command[1:]]) == 2
        assert "x.engr: data ends at byte" in capsys.readouterr().err
