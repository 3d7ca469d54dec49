"""WordPiece and Unigram: the same ids as the `tokenizers` library gives for the same file."""

from __future__ import annotations

import json
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from heddle.errors import ModelFileError, TokenizerFailedError, UnsupportedModelError
from heddle.extensions.tokenizers import pipeline
from heddle.text.tokenizer.tokenizer import Tokenizer as OurTokenizer
from heddle.weights.gguf.tokenizer import read_tokenizer as gguf_tokenizer
from heddle.weights.huggingface.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CORPUS = [
    "The sea is wide, and it's blue; 1234 ships sailed in 1492!",
    "Die Größe der Fäden, naïve façades, 漢字と仮名、Привет мир",
    "unaffordable unbelievable weaving weavers wove woven",
] * 3
WORDS = ["weaving", "Größe", " ", "  ", "[SEP]", "<s>", "</s>", "漢字", "\u0301", "1492", "#"]
TEXTS = st.text() | st.lists(st.sampled_from(WORDS)).map("".join)
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
XLM = ["<s>", "<pad>", "</s>", "<unk>"]


def trained_wordpiece(*, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=BERT, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bert() -> Tokenizer:
    tokenizer = trained_wordpiece(lowercase=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def cased_bert() -> Tokenizer:
    tokenizer = trained_wordpiece(lowercase=False)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def xlm_roberta() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=XLM, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


def mpnet() -> Tokenizer:
    tokenizer = trained_wordpiece(lowercase=True)
    tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


MAKERS = {maker.__name__: maker for maker in (bert, cased_bert, xlm_roberta, mpnet)}


@cache
def trained(name: str) -> Tokenizer:
    return MAKERS[name]()


@pytest.fixture
def folder(tmp_path: Path, name: str) -> Path:
    trained(name).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def both(folder: Path, name: str) -> tuple[Tokenizer, OurTokenizer]:
    return trained(name), OurTokenizer.of(read_tokenizer(folder, {}))


def theirs_without_marks(theirs: Tokenizer, text: str) -> list[int]:
    """Ids of a text in which nothing is a special token."""
    plain = Tokenizer.from_str(theirs.to_str())
    content = json.loads(plain.to_str())
    content["added_tokens"] = []
    content["post_processor"] = None
    return Tokenizer.from_str(json.dumps(content)).encode(text).ids


@pytest.mark.parametrize("name", MAKERS)
def test_texts_and_pairs_have_the_ids_of_the_library(both: tuple[Tokenizer, OurTokenizer]):
    theirs, ours = both

    @given(TEXTS, TEXTS)
    def check(first: str, second: str) -> None:
        assert ours.encode(first) == theirs.encode(first).ids
        if not any(mark in first + second for mark in (*BERT, *XLM)):
            assert ours.encode_pair(first, second) == theirs.encode(first, second).ids

    check()


@pytest.mark.parametrize("name", MAKERS)
def test_a_text_that_spells_a_special_token_gets_no_special_token(
    both: tuple[Tokenizer, OurTokenizer],
):
    theirs, ours = both
    special = {theirs.token_to_id(mark) for mark in (*BERT, *XLM)} - {None}
    unknown = {theirs.token_to_id(mark) for mark in ("[UNK]", "<unk>")}
    for mark in (*BERT, *XLM):
        ids = ours.encode(f"a {mark} b", add_special=False, parse_special=False)
        assert not special.intersection(ids) - unknown
        pair = ours.encode_pair(mark, mark)
        assert len(special.intersection(pair) - unknown) == 2


@pytest.mark.parametrize("name", MAKERS)
def test_a_long_text_is_cut_without_a_trace(both: tuple[Tokenizer, OurTokenizer], monkeypatch):
    theirs, ours = both
    text = "  weaving Größe,  x \n woven 漢字 1492  " * 20
    monkeypatch.setattr(pipeline, "PIECE", 16)
    assert ours.encode(text) == theirs.encode(text).ids


def charsmap() -> bytes:
    """A map of "A" to "a": a double-array trie of 32-bit units, and then the replacements."""
    units = np.zeros(512, np.uint32)
    units[0] = 256 << 10  # the children of the root
    units[256 ^ ord("A")] = 1 << 10 | 1 << 8 | ord("A")  # one of them, and it ends a key
    units[256 ^ ord("A") ^ 1] = 0  # where its replacement begins
    return struct.pack("<I", units.nbytes) + units.tobytes() + b"a\0"


def wordpiece_keys(theirs: Tokenizer) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes for BERT."""
    vocabulary = sorted(theirs.get_vocab(), key=theirs.get_vocab().__getitem__)
    tokens = [
        piece if piece in BERT else piece[2:] if piece.startswith("##") else f"\u2581{piece}"
        for piece in vocabulary
    ]
    types = [3 if piece in BERT else 1 for piece in vocabulary]
    return {
        "model": "bert",
        "tokens": tokens,
        "token_type": types,
        "unknown_token_id": 1,
        "seperator_token_id": 3,
        "cls_token_id": 2,
    }


def unigram_keys(theirs: Tokenizer) -> dict[str, Any]:
    vocabulary = json.loads(theirs.to_str())["model"]["vocab"]
    types = [2 if piece == "<unk>" else 3 if piece in XLM else 1 for piece, _ in vocabulary]
    return {
        "model": "t5",
        "tokens": [piece for piece, _ in vocabulary],
        "scores": np.array([score for _, score in vocabulary], np.float64),
        "token_type": types,
        "unknown_token_id": 3,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "add_bos_token": True,
        "add_eos_token": True,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
    }


def of_keys(keys: Mapping[str, Any]) -> OurTokenizer:
    return OurTokenizer.of(gguf_tokenizer({f"tokenizer.ggml.{k}": keys[k] for k in keys}))


@pytest.mark.parametrize("name", ["bert", "cased_bert"])
def test_a_wordpiece_of_gguf_has_the_ids_of_the_folder(name: str):
    theirs = trained(name)
    ours = of_keys(wordpiece_keys(theirs))

    @given(TEXTS, TEXTS)
    def check(first: str, second: str) -> None:
        assert ours.encode(first) == theirs.encode(first).ids
        if not any(mark in first + second for mark in BERT):
            assert ours.encode_pair(first, second) == theirs.encode(first, second).ids

    check()


def test_a_unigram_of_gguf_has_the_ids_of_the_folder():
    theirs = Tokenizer.from_str(trained("xlm_roberta").to_str())
    theirs.normalizer = normalizers.Precompiled(charsmap())
    keys = unigram_keys(theirs) | {"precompiled_charsmap": np.frombuffer(charsmap(), np.uint8)}
    ours = of_keys(keys)
    assert theirs.encode("A").ids == theirs.encode("a").ids

    @given(TEXTS, TEXTS)
    def check(first: str, second: str) -> None:
        assert ours.encode(first) == theirs.encode(first).ids
        if not any(mark in first + second for mark in XLM):
            assert ours.encode_pair(first, second) == theirs.encode(first, second).ids

    check()


def test_tokens_turn_into_text():
    ours = of_keys(wordpiece_keys(trained("bert")))
    assert ours.decode(ours.encode("woven weaving")).split() == ["woven", "weaving"]
    ours = of_keys(unigram_keys(trained("xlm_roberta")))
    assert ours.decode(ours.encode("woven weaving")).split() == ["woven", "weaving"]


@pytest.mark.parametrize("name", ["xlm_roberta"])
def test_wrong_files_are_refused_by_name(folder: Path):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"][5] = ["x"]
    path.write_text(json.dumps(content))
    with pytest.raises(ModelFileError, match="pairs of a piece and its score"):
        read_tokenizer(folder, {})
    content["model"] = {"type": "WordLevel", "vocab": {"a": 0}}
    path.write_text(json.dumps(content))
    with pytest.raises(UnsupportedModelError, match=r"'WordLevel' is not supported.*WordPiece"):
        read_tokenizer(folder, {})


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("tokens", ["a", "b"], r"has no \[CLS\]"),
        ("token_type", [1], "types|token_type"),
    ],
)
def test_wrong_keys_of_a_wordpiece_are_refused(key: str, value: object, error: str):
    keys = wordpiece_keys(trained("bert")) | {key: value}
    keys |= {"token_type": [1, 1]} if key == "tokens" else {}
    for name in ("unknown_token_id", "seperator_token_id", "cls_token_id"):
        keys.pop(name)
    with pytest.raises(ModelFileError, match=error):
        of_keys(keys)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("scores", [0.0], "scores"),
        ("scores", "x", "scores"),
        ("precompiled_charsmap", [1, 2, 3], "cannot be built"),
        ("unknown_token_id", 10**6, "cannot be built"),
    ],
)
def test_wrong_keys_of_a_unigram_are_refused(key: str, value: object, error: str):
    with pytest.raises(ModelFileError, match=error):
        of_keys(unigram_keys(trained("xlm_roberta")) | {key: value})


def test_a_text_that_the_model_has_no_token_for_is_refused():
    keys = unigram_keys(trained("xlm_roberta"))
    del keys["unknown_token_id"]
    with pytest.raises(TokenizerFailedError, match="refused this text"):
        of_keys(keys).encode("\U0001f9f5")
