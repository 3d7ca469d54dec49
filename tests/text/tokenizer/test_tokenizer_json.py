"""tokenizer.json: the same ids as the `tokenizers` library gives for the same file."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from heddle.errors import (
    ModelFileError,
    ModelSourceError,
    TokenizerFailedError,
    UnsupportedModelError,
)
from heddle.text.tokenizer import bpe, pretokenizers
from heddle.text.tokenizer.tokenizer import Tokenizer as OurTokenizer
from heddle.weights.gguf.tokenizer import read_tokenizer as gguf_tokenizer
from heddle.weights.huggingface.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CORPUS = [
    "The sea is wide, and it's blue; 1234 ships sailed in 1492!",
    "def weave(threads):\n    return [thread for thread in threads]\n",
    "Die Größe der Fäden, naïve façades, 漢字と仮名、Привет мир",
] * 3
SPECIAL = ["<s>", "</s>", "<|im_start|>"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(*steps: pre_tokenizers.PreTokenizer, use_regex: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last]) if steps else last
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def gpt2() -> Tokenizer:
    return byte_level(use_regex=True)


def smollm() -> Tokenizer:
    return byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True)


def llama3() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.Split(Regex(LLAMA3), "isolated"))
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)]),
        ]
    )
    return tokenizer


def llama2(*, prefix: bool = True) -> Tokenizer:
    space = "\u2581"
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps: list[Any] = [normalizers.Prepend(space)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", space)])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", *SPECIAL[:2]], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    pipeline = json.loads(tokenizer.to_str())
    vocabulary = pipeline["model"]["vocab"]
    for piece in bytes_:
        vocabulary.setdefault(piece, len(vocabulary))
    if prefix:
        template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        again = Tokenizer.from_str(json.dumps(pipeline))
        again.post_processor = template
        return again
    return Tokenizer.from_str(json.dumps(pipeline))


def gemma() -> Tokenizer:
    return llama2(prefix=False)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": gpt2,
    "smollm": smollm,
    "llama3": llama3,
    "llama2": llama2,
    "gemma": gemma,
}


@pytest.fixture(scope="module", params=KINDS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, OurTokenizer]:
    theirs = KINDS[request.param]()
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return theirs, OurTokenizer.of(read_tokenizer(folder, {}))


@pytest.mark.parametrize(
    "text", [*CORPUS[:3], "", " ", "  two  spaces ", "a</s>b <|im_start|>x", "12345", "😀é\u200b"]
)
def test_ids_equal_those_of_the_library(both: tuple[Tokenizer, OurTokenizer], text: str) -> None:
    theirs, ours = both
    assert ours.encode(text) == theirs.encode(text).ids


@given(text=st.text(max_size=40))
def test_ids_of_any_text_equal_those_of_the_library(
    both: tuple[Tokenizer, OurTokenizer], text: str
) -> None:
    theirs, ours = both
    if ours._space_prefix and not text:
        return  # neither llama.cpp nor the library adds a space to an empty text
    assert ours.encode(text) == theirs.encode(text).ids
    assert ours.decode(ours.encode(text)) == text


@given(text=st.text(st.sampled_from("the sea\nwé漢 "), max_size=40))
def test_a_gguf_file_of_gemma_4_gives_the_same_ids(text: str) -> None:
    theirs, ours = _gemma4()
    assert ours.encode(text) == theirs.encode(text).ids
    assert ours.decode(ours.encode(text)) == text


@cache
def _gemma4() -> tuple[Tokenizer, OurTokenizer]:
    """A tokenizer.json, and the keys that llama.cpp's converter writes for it."""
    theirs = gemma()
    model = json.loads(theirs.to_str())["model"]
    pieces = sorted(model["vocab"], key=lambda piece: int(model["vocab"][piece]))
    types = [6 if piece.startswith("<0x") else 3 if piece in SPECIAL else 1 for piece in pieces]
    keys = {
        "model": "gemma4",
        "tokens": pieces,
        "scores": [0.0] * len(pieces),
        "token_type": types,
        "merges": [" ".join(merge) for merge in model["merges"]],
        "add_bos_token": False,
    }
    return theirs, OurTokenizer.of(gguf_tokenizer({f"tokenizer.ggml.{k}": keys[k] for k in keys}))


def folder_with(tmp_path: Path, change: dict[str, Any], model: dict[str, Any]) -> Path:
    pipeline = json.loads(gpt2().to_str())
    pipeline["model"] |= model
    (tmp_path / "tokenizer.json").write_text(json.dumps(pipeline | change))
    return tmp_path


def test_rows_beyond_the_tokenizer_are_tokens_without_text(tmp_path: Path) -> None:
    spec = read_tokenizer(folder_with(tmp_path, {}, {}), {"vocab_size": 450})
    known = len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"])
    assert len(spec.pieces) == 450
    assert spec.pieces[known:] == [f"[PAD{id}]" for id in range(known, 450)]
    assert OurTokenizer.of(spec).token_bytes(449) == b""


def test_generation_ends_at_each_token_that_the_files_name(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {}, {})
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    tokenizer = OurTokenizer.of(read_tokenizer(folder, {"eos_token_id": 1, "bos_token_id": 0}))
    assert tokenizer.eos_ids >= {1, 2, 7}
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)
    (folder / "generation_config.json").write_text('{"eos_token_id": 4000}')
    with pytest.raises(ModelFileError, match="end_ids must be token ids below"):
        OurTokenizer.of(read_tokenizer(folder, {}))


def split_at(pattern: str) -> dict[str, Any]:
    regex = {"Regex": pattern}
    return {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("change", "model", "error", "problem"),
    [
        ({}, {"type": "WordLevel"}, UnsupportedModelError, "model.type 'WordLevel'"),
        ({}, {"vocab": []}, ModelFileError, "model.vocab must map pieces"),
        ({}, {"vocab": {"a": -1}}, ModelFileError, "maps 'a' to -1"),
        ({}, {"merges": None}, ModelFileError, "model.merges must be a list"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, {}, UnsupportedModelError, "pre_tokenizer"),
        (
            {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
            {},
            UnsupportedModelError,
            "pre_tokenizer",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"String": " "},
                    "behavior": "Isolated",
                    "invert": False,
                }
            },
            {},
            UnsupportedModelError,
            "pre_tokenizer.pattern",
        ),
        *(
            (
                {"pre_tokenizer": split_at("a") | {"behavior": behaviour, "invert": invert}},
                {},
                UnsupportedModelError,
                "pre_tokenizer.behavior",
            )
            for behaviour, invert in (("Removed", False), ("Isolated", True))
        ),
    ],
)
def test_other_pipelines_are_refused_by_name(
    change: dict[str, Any],
    model: dict[str, Any],
    error: type[Exception],
    problem: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=problem):
        read_tokenizer(folder_with(tmp_path, change, model), {})


def test_a_folder_without_tokenizer_or_with_too_few_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path, {})
    with pytest.raises(ModelFileError, match=r"vocab_size in config\.json is 30"):
        read_tokenizer(folder_with(tmp_path, {}, {}), {"vocab_size": 30})


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (split_at("(?:a|a)*[^a ]"), "pattern '(?:a|a)*[^a ]', which is not known"),
        (split_at("("), "pattern '(', which is not known"),
        ({"type": "Sequence", "pretokenizers": [split_at("a")] * 17}, "has 17 patterns"),
    ],
)
def test_patterns_that_may_take_long_are_refused(
    step: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    spec = read_tokenizer(folder_with(tmp_path, {"pre_tokenizer": step}, {}), {})
    with pytest.raises(UnsupportedModelError, match=re.escape(problem)) as error:
        OurTokenizer.of(spec)
    assert error.value.param == "tokenizer.json: pre_tokenizer"


def test_a_panic_of_the_library_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    step = split_at("(?:a|a)*[^a ]")
    spec = read_tokenizer(folder_with(tmp_path, {"pre_tokenizer": step}, {}), {})
    monkeypatch.setattr(pretokenizers, "is_linear", lambda pattern: True)
    with pytest.raises(TokenizerFailedError, match="retry-limit"):
        OurTokenizer.of(spec).encode("a" * 40)


def test_a_panic_while_the_tokenizer_is_made_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    class PanicException(BaseException):
        pass

    def panic(**_: object) -> None:
        raise PanicException("out of bounds")

    spec = read_tokenizer(folder_with(tmp_path, {}, {}), {})
    monkeypatch.setattr(bpe.models, "BPE", panic)
    with pytest.raises(ModelFileError, match="do not fit the vocabulary: out of bounds"):
        OurTokenizer.of(spec)


def test_merges_of_unknown_pieces_are_refused(tmp_path: Path) -> None:
    model = json.loads(llama2().to_str())["model"] | {"merges": [["no", "such"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
    with pytest.raises(ModelFileError, match="merges do not fit the vocabulary"):
        OurTokenizer.of(read_tokenizer(tmp_path, {}))


def test_half_a_surrogate_pair_is_no_piece(tmp_path: Path) -> None:
    token = {"id": 9, "content": "\ud800", "special": False}
    spec = read_tokenizer(folder_with(tmp_path, {"added_tokens": [token]}, {}), {})
    with pytest.raises(ModelFileError, match="pieces has half a surrogate pair"):
        OurTokenizer.of(spec)


def test_pre_tokenizers_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    step: dict[str, Any] = {"type": "ByteLevel"}
    for _ in range(600):
        step = {"type": "Sequence", "pretokenizers": [step]}
    folder = folder_with(tmp_path, {}, {})
    pipeline = json.loads((folder / "tokenizer.json").read_text()) | {"pre_tokenizer": step}
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        (folder / "tokenizer.json").write_text(json.dumps(pipeline))
    finally:
        sys.setrecursionlimit(limit)
    with pytest.raises(ModelFileError, match=r"nested too deeply|is not JSON"):
        read_tokenizer(folder, {})
