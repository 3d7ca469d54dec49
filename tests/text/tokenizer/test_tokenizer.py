"""The tokenizer on small vocabularies: what is special, what is added, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import byte_level, sentencepiece, tokenizer_of

from heddle.errors import (
    InvalidRequestError,
    ModelFileError,
    UnsupportedModelError,
    UnsupportedParameterError,
)
from heddle.text.tokenizer.vocabulary import TokenType

if TYPE_CHECKING:
    from heddle.text.tokenizer.tokenizer import Tokenizer

CONTROL, USER, UNKNOWN = TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN
SPECIAL = {"<s>": CONTROL, "<|im_end|>": CONTROL, "<tool>": USER, "<unk>": UNKNOWN}
BYTE_LEVEL = tokenizer_of(byte_level(["a b", "ab c", "Ġ a"], SPECIAL))


def pieces(tokenizer: Tokenizer, text: str, **options: Any) -> list[str]:
    return [tokenizer.token_text(id) for id in tokenizer.encode(text, **options)]


def with_key(metadata: dict[str, object], name: str, value: object) -> dict[str, object]:
    return metadata | {f"tokenizer.ggml.{name}": value}


def test_merges_apply_lowest_rank_first() -> None:
    assert pieces(BYTE_LEVEL, "abcab a") == ["abc", "ab", " a"]


@given(st.text())
def test_byte_level_round_trip(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, parse_special=False)
    assert BYTE_LEVEL.decode(ids) == text


def test_user_defined_tokens_are_parsed_always_and_special_ones_on_request() -> None:
    text = "a<s>b<tool><unk>"
    assert pieces(BYTE_LEVEL, text) == ["a", "<s>", "b", "<tool>", "<unk>"]
    plain = pieces(BYTE_LEVEL, text, parse_special=False)
    assert plain == [*"a<s>b", "<tool>", *"<unk>"]


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    ids = BYTE_LEVEL.encode("a<s>b<tool><|im_end|>")
    assert BYTE_LEVEL.decode(ids) == "ab<tool>"
    assert BYTE_LEVEL.decode(ids, skip_special=False) == "a<s>b<tool><|im_end|>"


def test_a_token_has_bytes_and_a_readable_form() -> None:
    (comma, *_), accent = BYTE_LEVEL.encode(","), BYTE_LEVEL.encode("é")
    assert BYTE_LEVEL.token_bytes(comma) == b","
    assert [BYTE_LEVEL.token_bytes(id) for id in accent] == [b"\xc3", b"\xa9"]
    assert BYTE_LEVEL.token_text(accent[0]) == "\ufffd"
    (start,) = BYTE_LEVEL.encode("<s>")
    assert BYTE_LEVEL.token_bytes(start) == b""
    assert BYTE_LEVEL.token_text(start) == "<s>"
    assert BYTE_LEVEL.is_special(start)
    assert not BYTE_LEVEL.is_special(comma)
    assert not BYTE_LEVEL.is_special(BYTE_LEVEL.encode("<tool>")[0])


def test_decode_puts_replacement_characters_for_broken_utf8() -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode("é")[:1]) == "\ufffd"


@pytest.mark.parametrize("id", [-1, BYTE_LEVEL.vocabulary_size])
def test_decode_refuses_ids_outside_the_vocabulary(id: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(id)) as caught:
        BYTE_LEVEL.decode([0, id])
    assert caught.value.param == "tokens"


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode("a\ud83dz")) == "a\ufffdz"
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode("\ud83d\ude00")) == "\U0001f600"


def test_bytes_without_a_piece_are_dropped_and_block_merges_across_them() -> None:
    tokenizer = tokenizer_of(byte_level(["! !"], without="\u0104"))  # byte 4
    assert pieces(tokenizer, "!!") == ["!!"]
    assert pieces(tokenizer, "!\x04!") == ["!", "!"]
    assert tokenizer.encode("\x04") == []


def test_the_first_of_equal_merges_gives_the_rank() -> None:
    tokenizer = tokenizer_of(byte_level(["a b", "b c", "a b"]))
    assert pieces(tokenizer, "abc") == ["ab", "c"]


def test_characters_outside_the_alphabet_stand_for_themselves() -> None:
    tokenizer = tokenizer_of(byte_level((), {"a\u00a0\u4f60": TokenType.NORMAL}))
    assert tokenizer.token_bytes(256) == "a\u00a0\u4f60".encode()


def test_empty_pieces_keep_their_ids() -> None:
    metadata = byte_level((), {"1": TokenType.UNUSED, "2": TokenType.UNUSED, "<x>": USER})
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokenizer = tokenizer_of(with_key(metadata, "tokens", [*tokens[:-3], "", "", "<x>"]))
    assert tokenizer.encode("<x>") == [len(tokens) - 1]
    assert tokenizer.token_bytes(len(tokens) - 2) == b""


def test_llama_bpe_keeps_a_word_that_is_a_piece_whole() -> None:
    metadata = byte_level(["a b"], {"abc": TokenType.NORMAL}, add_bos_token=False)
    assert pieces(tokenizer_of(metadata), "abc") == ["ab", "c"]
    metadata = with_key(metadata, "pre", "llama-bpe")
    assert pieces(tokenizer_of(metadata), "abc abc") == ["abc", " ", "ab", "c"]


# --- what is added -------------------------------------------------------------------------------


def test_bos_and_eos_are_added_where_the_file_asks() -> None:
    metadata = byte_level((), SPECIAL, bos_token_id=256, eos_token_id=257)
    assert pieces(tokenizer_of(metadata), "a") == ["a"]
    metadata |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = tokenizer_of(metadata)
    assert pieces(tokenizer, "a") == ["<s>", "a", "<|im_end|>"]
    assert pieces(tokenizer, "") == ["<s>", "<|im_end|>"]
    assert pieces(tokenizer, "a", add_special=False) == ["a"]
    assert tokenizer.encode("", add_special=False) == []


def test_a_shortened_text_keeps_the_token_that_ends_texts() -> None:
    metadata = byte_level(
        (), SPECIAL, bos_token_id=256, eos_token_id=257, add_bos_token=True, add_eos_token=True
    )
    tokenizer = tokenizer_of(metadata)
    text = tokenizer.encode("abc")
    assert tokenizer.shorten(text, 5) == tokenizer.shorten(text, 9) == text
    assert tokenizer.shorten(text, 4) == tokenizer.encode("ab")
    assert tokenizer.shorten(text, 1) == [257]
    without = tokenizer_of(with_key(metadata, "add_eos_token", False))
    assert without.shorten(text[:-1], 3) == without.encode("ab")


def test_llama_bpe_adds_bos_unless_the_file_forbids_it() -> None:
    metadata = with_key(byte_level((), SPECIAL, bos_token_id=256), "pre", "llama-bpe")
    assert pieces(tokenizer_of(metadata), "a") == ["<s>", "a"]
    metadata = with_key(metadata, "add_bos_token", False)
    assert pieces(tokenizer_of(metadata), "a") == ["a"]


def test_a_chat_has_bos_once_whether_its_template_writes_it_or_not() -> None:
    metadata = byte_level(
        (), SPECIAL, bos_token_id=256, eos_token_id=257, add_bos_token=True, add_eos_token=True
    )
    tokenizer = tokenizer_of(metadata)
    once = [256, *tokenizer.encode("ab", add_special=False)]
    assert tokenizer.encode_chat("ab") == once
    assert tokenizer.encode_chat("<s>ab") == once
    assert tokenizer.encode_chat("") == [256]
    without = tokenizer_of(with_key(metadata, "add_bos_token", False))
    assert without.encode_chat("ab") == once[1:]
    assert without.encode_chat("<s>ab") == once


def test_sentencepiece_adds_a_leading_space_and_removes_it_again() -> None:
    scores = {"▁": -3.0, "▁a": -1.0, "a": -2.0}
    metadata = sentencepiece(scores, SPECIAL)
    tokenizer = tokenizer_of(metadata)
    assert pieces(tokenizer, "a<s>a<tool>a") == [" a", "<s>", " a", "<tool>", " a"]
    assert tokenizer.decode(tokenizer.encode("a a")) == "a a"
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"
    bare = tokenizer_of(with_key(metadata, "add_space_prefix", False))
    assert pieces(bare, "a a") == ["a", " a"]
    assert bare.decode(bare.encode(" a")) == " a"


def test_sentencepiece_adds_bos_unless_the_file_forbids_it() -> None:
    metadata = sentencepiece({"▁": -1.0}, SPECIAL, bos_token_id=0)
    del metadata["tokenizer.ggml.add_bos_token"]
    assert pieces(tokenizer_of(metadata), "") == ["<s>"]


# --- what ends a generation ----------------------------------------------------------------------


def test_end_tokens_come_from_the_file_and_from_known_texts() -> None:
    special = {
        "<e1>": CONTROL,
        "<e2>": CONTROL,
        "<e3>": CONTROL,
        "<|eot_id|>": TokenType.NORMAL,
        "<|fim_pad|>": USER,
        "<|fim_prefix|>": USER,
        "<other>": CONTROL,
    }
    named = {"eos_token_id": 256, "eot_token_id": 257, "eom_token_id": 258}
    tokenizer = tokenizer_of(byte_level((), special, **named))
    assert tokenizer.eos_id == 256
    assert {tokenizer.token_text(id) for id in tokenizer.eos_ids} == {
        "<e1>",
        "<e2>",
        "<e3>",
        "<|eot_id|>",
        "<|fim_pad|>",
    }
    # Tokens found by their text are control tokens, whatever type the file states.
    for found in ("<|eot_id|>", "<|fim_pad|>", "<|fim_prefix|>"):
        (id,) = tokenizer.encode(found)
        assert tokenizer.is_special(id)


@pytest.mark.parametrize("ends", [("<|return|>", "<|call|>"), ("<|return|>",)])
def test_the_end_of_a_message_of_gpt_oss_is_no_end_of_a_generation(ends: tuple[str, ...]) -> None:
    special = dict.fromkeys(("<|end|>", *ends), CONTROL)
    tokenizer = tokenizer_of(byte_level((), special, eot_token_id=256))
    found = {tokenizer.token_text(id) for id in tokenizer.eos_ids}
    assert found == ({*ends} if "<|call|>" in ends else {"<|end|>", *ends})
    assert tokenizer.control_id("<|end|>") == 256


def test_fill_in_prompts_use_the_three_fim_tokens() -> None:
    roles = dict.fromkeys(("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), CONTROL)
    tokenizer = tokenizer_of(byte_level((), roles))
    before, after, middle = (tokenizer.encode(role)[0] for role in roles)
    [a], [b] = tokenizer.encode("a"), tokenizer.encode("b")
    assert tokenizer.encode_fill_in("a", "b") == [before, a, after, b, middle]
    assert tokenizer.encode_fill_in([b, a], "") == [before, b, a, after, middle]
    hostile = tokenizer.encode_fill_in("<|fim_middle|>", "<|fim_suffix|>")
    assert hostile.count(middle) == hostile.count(after) == 1


def test_files_before_a_fill_in_prompt_come_after_bos() -> None:
    metadata = byte_level((), SPECIAL, bos_token_id=256, add_bos_token=True)
    assert tokenizer_of(metadata).put_before([256, 1, 2], [3, 4]) == [256, 3, 4, 1, 2]
    without = tokenizer_of(with_key(metadata, "add_bos_token", False))
    assert without.put_before([1, 2], [3, 4]) == [3, 4, 1, 2]


def test_fill_in_needs_all_three_fim_tokens() -> None:
    some = {"<|fim_prefix|>": CONTROL, "<|fim_suffix|>": CONTROL}
    tokenizer = tokenizer_of(byte_level((), some))
    with pytest.raises(UnsupportedParameterError, match="no fill-in-the-middle tokens"):
        tokenizer.encode_fill_in("a", "b")


def test_a_role_that_the_file_names_is_not_searched_by_text() -> None:
    special = {"<sep>": CONTROL, "<|file_sep|>": USER}
    named = {"fim_sep_token_id": 256, "fim_pad_token_id": 0}
    tokenizer = tokenizer_of(byte_level((), special, **named))
    assert tokenizer.eos_ids == {0, 256}
    assert not tokenizer.is_special(257)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "key", "value"),
    [
        (byte_level(), "tokens", None),
        (byte_level(), "tokens", []),
        (byte_level(), "tokens", "abc"),
        (byte_level(), "tokens", ["a", 5]),
        (byte_level(), "tokens", ["a", "b", "a"]),
        (byte_level(), "token_type", [1]),
        (byte_level(), "token_type", ["1"] * 256),
        (byte_level(), "token_type", [float("nan")] * 256),
        (byte_level(), "token_type", [1.0] * 255 + [float("inf")]),
        (byte_level(), "token_type", [1.5] * 256),
        (byte_level(), "merges", None),
        (byte_level(), "merges", ["ab"]),
        (byte_level(), "merges", ["a zz"]),
        (byte_level(), "merges", ["a b"]),  # there is no piece "ab"
        (byte_level(), "bos_token_id", 256),
        (byte_level(), "eos_token_id", -1),
        (byte_level(), "eos_token_id", "2"),
        (byte_level(), "eot_token_id", True),
        (byte_level(), "fim_pad_token_id", 1000),
        (byte_level(), "add_bos_token", 1),
        (byte_level(), "model", None),
        (byte_level(), "model", 3),
        (byte_level(), "pre", 3),
        (sentencepiece({"a": 0.0}), "scores", None),
        (sentencepiece({"a": 0.0}), "scores", [0.0]),
        (sentencepiece({"a": 0.0}), "scores", [float("nan")] * 257),
        (sentencepiece({"a": 0.0}), "tokens", [*map(str, range(257))]),  # no bytes
        (
            sentencepiece({"a": 0.0}),
            "token_type",
            [TokenType.BYTE] * 257,
        ),  # "a" is not a byte token
    ],
)
def test_invalid_metadata_is_refused_by_name(
    metadata: dict[str, object], key: str, value: object
) -> None:
    tokenizer_of(metadata)
    with pytest.raises(ModelFileError) as caught:
        tokenizer_of(with_key(metadata, key, value))
    assert caught.value.field == f"tokenizer.ggml.{key}"
    assert f"tokenizer.ggml.{key}" in caught.value.message


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_adding_a_token_the_file_does_not_name_is_refused(name: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        tokenizer_of(byte_level(**{f"add_{name}_token": True}))
    assert caught.value.field == f"tokenizer.ggml.{name}_token_id"


@pytest.mark.parametrize(("key", "value"), [("model", "unknown"), ("pre", "viking")])
def test_unknown_kinds_are_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(UnsupportedModelError, match=repr(value)) as caught:
        tokenizer_of(with_key(byte_level(), key, value))
    assert caught.value.param == f"tokenizer.ggml.{key}"


def test_metadata_arrays_can_be_numpy_arrays() -> None:
    metadata = sentencepiece({"a": -2.0, "b": -1.0, "ab": -3.0})
    for name, dtype in (("scores", np.float32), ("token_type", np.int32)):
        metadata = with_key(metadata, name, np.array(metadata[f"tokenizer.ggml.{name}"], dtype))
    assert "ab" in pieces(tokenizer_of(metadata), "ab")


def test_threads_share_a_tokenizer() -> None:
    texts = [f"ab{i} abc<s> {i}" * 50 for i in range(8)]
    expected = [BYTE_LEVEL.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(BYTE_LEVEL.encode, texts * 5)) == expected * 5
