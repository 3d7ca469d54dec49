"""tekken.json and tiktoken.model: the ids of byte pairs joined by the lowest rank."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import ModelFileError
from heddle.text.tokenizer.tokenizer import Tokenizer
from heddle.weights.hub.choice import choose
from heddle.weights.hub.names import HubName
from heddle.weights.huggingface.tokenizer import end_tokens_of, read_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = [b"ab", b"  ", b"aa", b"abc", b"aba", b"    ", b"\xc3\xa9", b"abab", b"aaa", b" ab", b"bc"]
RANKED = [bytes([byte]) for byte in range(256)] + PAIRS
PATTERN = r"\S+| +|\s"
TEXTS = st.text() | st.text("abc é\n") | st.text("ab", min_size=4)
SPECIAL = 30


def joined(text: str) -> list[int]:
    """The ranks of a text by the definition: join the first pair with the lowest rank, repeat."""
    ranks = {token: rank for rank, token in enumerate(RANKED)}
    found: list[int] = []
    for word in words(text):
        parts = [bytes([byte]) for byte in word.encode()]
        if word.encode() in ranks:
            parts = [word.encode()]
        while pairs := [
            (ranks[left + right], at)
            for at, (left, right) in enumerate(pairwise(parts))
            if left + right in ranks
        ]:
            _, at = min(pairs)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found += [ranks[part] for part in parts]
    return found


def words(text: str) -> list[str]:
    """The words of PATTERN, without a library of patterns."""
    found: list[str] = []
    for char in text:
        kind = "S" if not char.isspace() else char if char == " " else "s"
        last = found[-1][-1] if found else ""
        before = "S" if last and not last.isspace() else last if last == " " else "s"
        if found and kind == before and kind != "s":
            found[-1] += char
        else:
            found.append(char)
    return found


def tekken(**changes: Any) -> dict[str, Any]:
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate([*RANKED, b"not in the model"])
    ]
    config = {
        "pattern": PATTERN,
        "default_vocab_size": len(RANKED) + SPECIAL,
        "default_num_special_tokens": SPECIAL,
        "version": "v3",
    }
    return {"config": config, "vocab": vocabulary} | changes


def tiktoken_lines() -> bytes:
    lines = (base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(RANKED))
    return b"\n".join(lines) + b"\n"


def write_tekken(folder: Path, **changes: Any) -> Path:
    (folder / "tekken.json").write_text(json.dumps(tekken(**changes)))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tekken(tmp_path)


def without_odd_spaces(text: str) -> bool:
    """Whether Python and the library agree on what is a space."""
    return not any(
        (char.isspace() and char not in " \n") or char in "\x1c\x1d\x1e\x1f\x85" for char in text
    )


def test_a_tekken_joins_by_rank(folder: Path):
    tokenizer = Tokenizer.of(read_tokenizer(folder, {}))

    @given(TEXTS.filter(without_odd_spaces))
    def check(text: str) -> None:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ids == [SPECIAL + rank for rank in joined(text)]
        assert tokenizer.decode(ids) == text

    check()


def test_a_tekken_has_the_special_tokens_of_its_version(folder: Path):
    tokenizer = Tokenizer.of(read_tokenizer(folder, {"eos_token_id": 2}))
    assert tokenizer.encode("[INST]a[TOOL_CONTENT]<SPECIAL_29>") == [1, 3, SPECIAL + 97, 19, 29]
    assert tokenizer.eos_ids == {2}
    plain = tokenizer.encode("x[INST]", add_special=False, parse_special=False)
    assert plain == [SPECIAL + byte for byte in b"x[INST]"]


def test_a_tekken_may_name_its_special_tokens(tmp_path: Path):
    named = [{"rank": i, "token_str": f"<{i}>", "is_control": True} for i in range(3)]
    tokenizer = Tokenizer.of(read_tokenizer(write_tekken(tmp_path, special_tokens=named), {}))
    assert tokenizer.encode("<2><SPECIAL_3>", add_special=False) == [2, 3]


def test_a_tiktoken_model_of_kimi_has_its_special_tokens_behind(tmp_path: Path):
    (tmp_path / "tiktoken.model").write_bytes(tiktoken_lines())
    first = len(RANKED)
    added = {str(first + 1): {"content": "[EOS]", "special": True}}
    settings = {"added_tokens_decoder": added, "eos_token": "[EOS]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.of(read_tokenizer(tmp_path, {}))
    assert tokenizer.encode(f"abab[EOS]<|reserved_token_{first + 2}|>") == [
        RANKED.index(b"abab"),
        first + 1,
        first + 2,
    ]
    assert tokenizer.eos_id == first + 1
    assert tokenizer.vocabulary_size == first + 256


def test_tokenizer_json_comes_before_other_files(folder: Path):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        read_tokenizer(folder, {})


def test_the_tokens_that_end_a_generation_have_their_texts(folder: Path):
    assert end_tokens_of(folder, {"eos_token_id": 2}) == {2: "</s>"}


def test_the_hub_is_asked_for_the_file_where_there_is_no_tokenizer_json():
    name = HubName("somebody/model")
    files = ["config.json", "model.safetensors", "tekken.json", "tiktoken.model", "other.json"]
    assert choose(name, files).first == ("config.json", "tekken.json", "tiktoken.model")
    assert "tekken.json" not in choose(name, [*files, "tokenizer.json"]).first


ENTRY = {"rank": 0, "token_bytes": "YQ=="}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"config": None}, "config.default_vocab_size None"),
        ({"config": {"default_vocab_size": 1 << 30}}, "config.default_vocab_size 1073741824"),
        (
            {"config": {"default_vocab_size": 5, "default_num_special_tokens": 9}},
            "9 special tokens of 5 tokens",
        ),
        ({"vocab": None}, "0 tokens where 267"),
        ({"vocab": [ENTRY, 3] * 200}, "which is not 1 to"),
        ({"vocab": [ENTRY] * 300}, "a token twice"),
        ({"vocab": [{"rank": 0, "token_bytes": "YQ"}] * 300}, "which is not 1 to"),
        ({"vocab": [{"rank": 0, "token_bytes": "YWFh" * 999}] * 300}, "which is not 1 to"),
        ({"config": tekken()["config"] | {"pattern": None}}, "the pattern None"),
    ],
)
def test_a_wrong_tekken_is_refused(tmp_path: Path, changes: dict[str, Any], error: str):
    with pytest.raises(ModelFileError, match=error):
        read_tokenizer(write_tekken(tmp_path, **changes), {})


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"YQ== 1\n", "where 0 must follow"), (b"? 0\n", "which is not"), (b"", "0 tokens")],
)
def test_a_wrong_tiktoken_model_is_refused(tmp_path: Path, content: bytes, error: str):
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(ModelFileError, match=error):
        read_tokenizer(tmp_path, {})
