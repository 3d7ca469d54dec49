"""The tokenizer of RWKV World, from a vocabulary file and from GGUF, against its definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import ModelFileError
from heddle.text.tokenizer.tokenizer import Tokenizer
from heddle.weights.gguf.tokenizer import read_tokenizer as read_gguf_tokenizer
from heddle.weights.huggingface.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ["ab", "abc", "abcde", "\n\n", " a", "é", "世界", "  ", "a'\"b", "\\n", "\t", "(", "世"]
TOKENS = [bytes([byte]) for byte in range(256)]
TOKENS += [word.encode() for word in WORDS if word.encode() not in TOKENS] + [
    b"\xe4\xb8",
    b"\xff\xfe",
]
VOCABULARY = 300
TEXTS = st.text() | st.text("abcde é\n世界\\n'\"") | st.just("abcdabcdeab")


def line(id: int, token: bytes) -> str:
    try:
        return f"{id} {token.decode()!r} {len(token)}\n"
    except UnicodeDecodeError:
        return f"{id} {token!r} {len(token)}\n"


def longest_first(text: str) -> list[int]:
    """The ids by the definition. Id 0 ends a text, so tokens are numbered from 1."""
    data, found = text.encode(), []
    while data:
        token = max((one for one in TOKENS if data.startswith(one)), key=len)
        found.append(TOKENS.index(token) + 1)
        data = data[len(token) :]
    return found


def write_vocabulary(folder: Path, content: str) -> Path:
    (folder / "rwkv_vocab_v20230424.txt").write_text(content)
    return folder


def from_folder(folder: Path) -> Tokenizer:
    content = "".join(line(id, token) for id, token in enumerate(TOKENS, 1))
    config = {"vocab_size": VOCABULARY, "eos_token_id": 0}
    return Tokenizer.of(read_tokenizer(write_vocabulary(folder, content), config))


def from_gguf() -> Tokenizer:
    pieces = ["<s>", *(repr(token)[2:-1] for token in TOKENS)]
    unused = VOCABULARY - len(pieces)
    return Tokenizer.of(
        read_gguf_tokenizer(
            {
                "tokenizer.ggml.model": "rwkv",
                "tokenizer.ggml.tokens": pieces + [f"[PAD{id}]" for id in range(unused)],
                "tokenizer.ggml.token_type": [3] + [1] * len(TOKENS) + [5] * unused,
                "tokenizer.ggml.bos_token_id": 0,
                "tokenizer.ggml.eos_token_id": 0,
            }
        )
    )


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    return from_folder(tmp_path_factory.mktemp("world")), from_gguf()


@given(text=TEXTS)
def test_the_longest_token_is_taken(tokenizers: tuple[Tokenizer, Tokenizer], text: str) -> None:
    expected = longest_first(text)
    for tokenizer in tokenizers:
        found = tokenizer.encode(text)
        assert found == expected
        assert b"".join(TOKENS[id - 1] for id in found) == text.encode()
        assert tokenizer.decode(found) == text


def test_a_text_has_no_beginning_and_id_0_ends_it(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    folder, gguf = tokenizers
    assert folder.eos_ids == gguf.eos_ids == frozenset({0})
    assert folder.encode("<|rwkv_tokenizer_end_of_text|>") == [0]
    assert len(folder.encode("<|rwkv_tokenizer_end_of_text|>", parse_special=False)) > 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("1 'a' 2\n", "line 1 has another length"),
        ("x 'a' 1\n", "line 1 has another length than it says, or no id"),
        ("1 'a' 1\n2 'a' 1\n", "line 2 has a token that an earlier line has"),
        ("1 'a' 1\n1 'b' 1\n", "has an id that another line has"),
        ("1 '' 0\n", "is no token of 1 to 1024 bytes"),
        ("1 open('a') 1\n", "is no token of 1 to 1024 bytes"),
        ("1 " + "(" * 3000 + " 1\n", "is no token of 1 to 1024 bytes"),
        (f"1 {'a' * 9000!r} 9000\n", "is no token of 1 to 1024 bytes"),
        ("1 'a' 1\n", "no token of the single byte 0x00"),
    ],
)
def test_damaged_vocabularies_are_refused(content: str, problem: str, tmp_path: Path) -> None:
    folder = write_vocabulary(tmp_path, content)
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.of(read_tokenizer(folder, {"vocab_size": VOCABULARY}))
