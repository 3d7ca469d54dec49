"""Long texts are encoded in pieces and give the tokens of the whole text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import byte_level, sentencepiece, tokenizer_of

from heddle.text.tokenizer import bpe
from heddle.text.tokenizer import sentencepiece as spm
from heddle.text.tokenizer.pretokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    from heddle.text.tokenizer.tokenizer import Tokenizer

MERGES = ["a b", "1 1", "Ġ Ġ", "Ċ Ċ", "l l", "' ll", "' s", "Ġ a", ". ."]
WORDS = ["a", "ab", "1", "11", " ", "  ", "\n", "\r\n", "\t", ".", "..", "'", "'s", "'ll", "l"]
WORDS += ["\u4f60", "\u00e9", "\U0001f600", "\u00a0", "\u2028", "A", "$", "\u0661"]
TEXTS = st.lists(
    st.sampled_from(WORDS) | st.tuples(st.sampled_from(WORDS), st.integers(2, 60)), max_size=60
).map(lambda parts: "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts))

BYTE_LEVEL = {
    name: tokenizer_of(byte_level(MERGES, add_bos_token=False) | {"tokenizer.ggml.pre": name})
    for name in PRE_TOKENIZERS
}
SENTENCEPIECE = tokenizer_of(
    sentencepiece({"a": -1, "b": -1, "ab": -2, "\u2581": -1, "\u2581a": -3, "1": -1, "11": -2})
)


@dataclass
class Recorder:
    """Forwards texts, and records their lengths."""

    tokenizer: Any
    lengths: list[int] = field(default_factory=list)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.lengths += map(len, texts)
        return self.tokenizer.encode_batch_fast(texts, **options)

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.lengths += map(len, texts)
        return self.tokenizer.encode_batch(texts, **options)


def in_pieces(tokenizer: Tokenizer, text: str, size: int) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "PIECE", size)
        patch.setattr(spm, "PIECE", size)
        return tokenizer.encode(text)


@pytest.mark.parametrize("pre", BYTE_LEVEL)
@given(text=TEXTS, size=st.integers(17, 60))
def test_long_texts_are_split_into_the_same_words(pre: str, text: str, size: int) -> None:
    whole = BYTE_LEVEL[pre].encode(text)
    assert in_pieces(BYTE_LEVEL[pre], text, size) == whole


@given(text=TEXTS, size=st.integers(1, 60))
def test_long_sentencepiece_texts_give_the_same_pieces(text: str, size: int) -> None:
    assert in_pieces(SENTENCEPIECE, text, size) == SENTENCEPIECE.encode(text)


@pytest.mark.parametrize("character", ["1", "1.", "a ", "a\n", "\u4f60 "])
def test_the_library_never_sees_a_long_text_of_many_words(
    monkeypatch: pytest.MonkeyPatch, character: str
) -> None:
    """The library took 2.4 GB for 8 MB of digits."""
    tokenizer = BYTE_LEVEL["qwen2"]
    recorder = Recorder(tokenizer._encoder._tokenizer)  # type: ignore[attr-defined]
    monkeypatch.setattr(tokenizer._encoder, "_tokenizer", recorder)
    monkeypatch.setattr(bpe, "PIECE", 1000)
    ids = tokenizer.encode(character * 10_000)
    assert max(recorder.lengths) <= 1000
    assert sum(recorder.lengths) < 12_000 * len(character)
    monkeypatch.undo()
    assert ids == tokenizer.encode(character * 10_000)


def test_a_sentencepiece_text_is_cut_where_no_piece_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(SENTENCEPIECE._encoder._tokenizer)  # type: ignore[attr-defined]
    monkeypatch.setattr(SENTENCEPIECE._encoder, "_tokenizer", recorder)
    monkeypatch.setattr(spm, "PIECE", 1000)
    SENTENCEPIECE.encode("ab " * 4000)
    assert max(recorder.lengths) <= 1010


def test_equal_ids_of_a_long_text_share_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight million ids take 64 MB this way, and 290 MB otherwise."""
    monkeypatch.setattr(bpe, "PIECE", 100)
    ids = tokenizer_of(byte_level(MERGES)).encode("ll.." * 1000)
    assert len(set(map(id, ids))) == len(set(ids))
