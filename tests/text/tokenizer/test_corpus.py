"""Token ids against llama.cpp's, made once by `scripts/make_token_corpus.py`, and round trips."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from vocabularies import tokenizer_of

from heddle.folders import cache_home
from heddle.weights.gguf.file import GGUFFile
from heddle.weights.sources import find

if TYPE_CHECKING:
    from heddle.text.tokenizer.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
DEFAULT = "smollm2-135m"

# The default model's vocabulary has no piece for these bytes; llama.cpp drops them as well.
WITHOUT_PIECES = bytes.fromhex("04 06 13 14 16 1d f1 f2")

models = pytest.mark.parametrize(
    "alias",
    [
        pytest.param(DEFAULT, marks=pytest.mark.model),
        pytest.param("gemma3-270m", marks=pytest.mark.large),
        pytest.param("qwen2.5-coder-1.5b", marks=pytest.mark.large),
    ],
)


def load(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


TEXTS: dict[str, str] = load("corpus")
PRE_TOKENIZERS = load("ids-pretokenizers")["ids"]


@cache
def metadata_of(alias: str) -> dict[str, object]:
    with GGUFFile.open(find(alias, cache_home()).path) as file:
        return dict(file.metadata)


@cache
def tokenizer_of_alias(alias: str) -> Tokenizer:
    return tokenizer_of(metadata_of(alias))


def check(tokenizer: Tokenizer, expected: dict[str, list[list[int]]]) -> None:
    assert expected.keys() == TEXTS.keys()
    for name, text in TEXTS.items():
        with_special, plain = expected[name]
        assert tokenizer.encode(text) == with_special, name
        assert tokenizer.encode(text, add_special=False, parse_special=False) == plain, name


@models
def test_ids_equal_llama_cpps(alias: str) -> None:
    check(tokenizer_of_alias(alias), load(f"ids-{alias}")["ids"])


@pytest.mark.model
@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_ids_under_every_pre_tokenizer_equal_llama_cpps(name: str) -> None:
    tokenizer = tokenizer_of(metadata_of(DEFAULT) | {"tokenizer.ggml.pre": name})
    expected = PRE_TOKENIZERS[name]
    assert expected.keys() == TEXTS.keys()
    for text, ids in expected.items():
        plain = tokenizer.encode(TEXTS[text], add_special=False, parse_special=False)
        assert plain == ids, text


def test_ids_of_a_small_sentencepiece_vocabulary_equal_llama_cpps() -> None:
    data = load("sentencepiece")
    check(tokenizer_of(data["metadata"]), data["ids"])


@models
def test_encoding_and_decoding_round_trip(alias: str) -> None:
    tokenizer = tokenizer_of_alias(alias)
    for name, text in TEXTS.items():
        lossless = text
        if alias == DEFAULT:
            kept = text.encode().translate(None, delete=WITHOUT_PIECES)
            lossless = kept.decode(errors="replace")
        if alias == "gemma3-270m":
            lossless = text.replace("\u2581", " ")  # how SentencePiece writes a space
        ids = tokenizer.encode(text, parse_special=False)
        assert tokenizer.decode(ids) == lossless, name
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids, skip_special=False) == lossless, name


@models
def test_token_bytes_agree_with_decoding(alias: str) -> None:
    tokenizer = tokenizer_of_alias(alias)
    for name, text in TEXTS.items():
        ids = tokenizer.encode(text)
        together = b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")
        assert tokenizer.decode(ids) == together, name


@models
def test_end_tokens_of_each_model(alias: str) -> None:
    tokenizer = tokenizer_of_alias(alias)
    assert {tokenizer.token_text(id) for id in tokenizer.eos_ids} == {
        DEFAULT: {"<|im_end|>", "<|endoftext|>", "<reponame>"},
        "gemma3-270m": {"<end_of_turn>", "<eos>", "</s>"},
        "qwen2.5-coder-1.5b": {
            *("<|im_end|>", "<|endoftext|>", "</s>"),
            *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
        },
    }[alias]


@pytest.mark.large
def test_file_prompts_have_the_repository_layout() -> None:
    tokenizer = tokenizer_of("qwen2.5-coder-1.5b")
    head, first, second, tail = tokenizer.encode_files(
        [("a.py", "one\n"), ("b.py", "<|file_sep|>")]
    )
    texts = [tokenizer.decode(ids, skip_special=False) for ids in (head, first, second, tail)]
    assert texts == [
        "<|repo_name|>repository\n",
        "<|file_sep|>a.py\none\n",
        "<|file_sep|>b.py\n<|file_sep|>",
        "<|file_sep|>file\n",
    ]
    mark = tokenizer.control_id("<|file_sep|>")
    assert [ids.count(mark) for ids in (first, second, tail)] == [
        1,
        1,
        1,
    ]  # the text of a file adds no mark
    prompt = tokenizer.put_before(tokenizer.encode_fill_in("x", "y"), head + first + tail)
    assert tokenizer.decode(prompt, skip_special=False) == (
        "".join([texts[0], texts[1], texts[3]]) + "<|fim_prefix|>x<|fim_suffix|>y<|fim_middle|>"
    )
