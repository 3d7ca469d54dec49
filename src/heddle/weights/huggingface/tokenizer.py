"""Reads tokenizer.json: the tokenizer of a Hugging Face folder.

The file describes a pipeline of the `tokenizers` library: a normalizer, a pre-tokenizer, a model, a
post-processor. This module reads the two kinds of pipelines that language models have: byte-level
BPE, and SentencePiece's BPE with byte fallback. Extensions read other kinds. It refuses the rest,
and the error names what is not supported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from heddle.doors import refer, tokenizer_files
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.weights.checkpoint import TokenizerSpec
from heddle.weights.huggingface import generation
from heddle.weights.huggingface.json_files import read_json, read_optional_json
from heddle.weights.tokenizer_kind import kind_of, kinds

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.weights.huggingface.json_files import Config

_FILE = "tokenizer.json"
_SPACE = "\u2581"
_MOST_UNUSED = 1 << 16
"""Most ids without a token where config.json does not say how many there are."""
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""Numbers of `heddle.text.tokenizer.vocabulary.TokenType`."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern of the library's `ByteLevel` pre-tokenizer."""


def read_tokenizer(folder: Path, config: Config) -> TokenizerSpec:
    """The tokenizer of a folder whose config.json is `config`.

    Raises:
        ModelSourceError: there is no file with a tokenizer.
        ModelFileError: a part of it is missing or has the wrong type.
        UnsupportedModelError: its pipeline is not supported.
    """
    return _Reader(folder, config).spec()


def end_tokens_of(folder: Path, config: Config) -> dict[int, str | None]:
    """Ids of the tokens that the folder's files name as ends of a generation, and their texts."""
    file = _file(folder)
    pipeline = _read(file) if file.is_file() else {}
    vocabulary = _object(_object(pipeline.get("model")).get("vocab"))
    tokens = [_object(token) for token in _list(pipeline.get("added_tokens"))]
    pieces = [*vocabulary.items(), *((token.get("content"), token.get("id")) for token in tokens)]
    ids = _end_ids(read_optional_json(folder / generation.FILE), config)
    texts = {id: piece for piece, id in pieces if id in ids and isinstance(piece, str)}
    return {id: texts.get(id) for id in ids}


def separator_of(folder: Path, config: Config) -> Config:
    """The id of the token that ends a segment, as config.json would name it.

    Empty if the model has no segments, or if no token is called `[SEP]`.
    """
    segments = config.get("type_vocab_size")
    if not isinstance(segments, int) or segments < 2 or "sep_token_id" in config:
        return {}
    tokens = map(_object, _list(read_optional_json(folder / _FILE).get("added_tokens")))
    ids = [id for one in tokens if one.get("content") == "[SEP]" for id in _ids(one.get("id"))]
    return {"sep_token_id": ids[0]} if ids else {}


def _file(folder: Path) -> Path:
    """The file with the tokenizer: tokenizer.json, or one that an extension reads."""
    names = (_FILE, *tokenizer_files())
    return next((folder / name for name in names if (folder / name).is_file()), folder / _FILE)


def _read(file: Path) -> Config:
    """What a tokenizer.json would hold."""
    reader = tokenizer_files().get(file.name)
    content: Config = refer(reader)(file) if reader else read_json(file)
    return content


def _end_ids(*sources: Config) -> tuple[int, ...]:
    """Ids that end a generation, as generation_config.json and config.json name them."""
    return tuple(sorted({id for one in sources for id in _ids(one.get("eos_token_id"))}))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class _Template:
    """What a post-processor adds to texts.

    Attributes:
        begins: whether a token comes before a text.
        ends: whether a token comes after it. Qwen3-Embedding ends texts with another one than EOS.
        begin: id of the token before it, if the file says it.
        end: id of the token after it, if the file says it.
        between: ids between two texts.
    """

    begins: bool = False
    ends: bool = False
    begin: int | None = None
    end: int | None = None
    between: tuple[int, ...] = ()

    @classmethod
    def of(cls, step: dict[str, Any]) -> _Template:
        """The template of a step `TemplateProcessing`."""
        single, pair = (
            [_object(part) for part in _list(step.get(name))] for name in ("single", "pair")
        )
        if not single:
            return cls()
        begins, ends = ("SpecialToken" in single[place] for place in (0, -1))
        first, last = (cls._ids_of(step, single[place]) for place in (0, -1))
        texts = [place for place, part in enumerate(pair) if "Sequence" in part]
        inside = pair[texts[0] + 1 : texts[1]] if len(texts) == 2 else []
        between = tuple(id for part in inside for id in cls._ids_of(step, part))
        return cls(begins, ends, first[0] if first else None, last[-1] if last else None, between)

    @staticmethod
    def _ids_of(step: dict[str, Any], part: dict[str, Any]) -> list[int]:
        named = str(_object(part.get("SpecialToken")).get("id"))
        return _ids(_object(_object(step.get("special_tokens")).get(named)).get("ids"))


class _Reader:
    def __init__(self, folder: Path, config: Config) -> None:
        self._file = _file(folder)
        self._pipeline = _read(self._file)
        self._settings = read_optional_json(folder / "tokenizer_config.json")
        self._generation = read_optional_json(folder / generation.FILE)
        self._config = config
        self._model = _object(self._pipeline.get("model"))

    def spec(self) -> TokenizerSpec:
        name = self._model.get("type", "BPE")
        kind = kind_of(name)
        if kind is not None:
            return kind.read(self._spec(name, byte_level=False), self._pipeline)
        if name != "BPE":
            self._refuse("model.type", name, ", ".join(["BPE", *kinds()]))
        byte_level = not self._model.get("byte_fallback")
        spec = self._spec("bpe" if byte_level else "sentencepiece", byte_level=byte_level)
        return replace(spec, merges=self._merges())

    def _spec(self, algorithm: str, *, byte_level: bool) -> TokenizerSpec:
        """The spec without what particular kinds have."""
        pieces, types = self._vocabulary()
        try:
            steps = self._pipeline.get("pre_tokenizer") if byte_level else None
            patterns = tuple(self._patterns(steps))
        except RecursionError:
            self._fail("pre_tokenizer", "is nested too deeply")
        template = self._template()
        return TokenizerSpec(
            algorithm=algorithm,
            pieces=pieces,
            types=types,
            merges=[],
            scores=[],
            pre_tokenizer=None,
            roles=self._roles(pieces) | ({} if template.begin is None else {"bos": template.begin}),
            add_bos=template.begins,
            add_eos=template.ends,
            text_end=template.end,
            between=template.between,
            add_space_prefix=False if byte_level else self._adds_space(),
            label=lambda name: f"{self._file.name}: {name}",
            patterns=patterns,
            whole_words=self._model.get("ignore_merges") is True,
            end_ids=_end_ids(self._generation, self._config),
        )

    def _fail(self, field: str, problem: str) -> NoReturn:
        raise ModelFileError(f"{self._file.name}: {field} {problem}", field=field)

    def _refuse(self, field: str, value: object, supported: str) -> NoReturn:
        raise UnsupportedModelError(
            f"{self._file.name}: {field} {value!r} is not supported; supported: {supported}",
            param=field,
        )

    # --- vocabulary ------------------------------------------------------------------------------

    def _vocabulary(self) -> tuple[list[str], list[int]]:
        """Pieces and their types, one of each for each id that the model may sample."""
        vocabulary = self._model.get("vocab")
        if isinstance(vocabulary, list):  # of pieces with scores
            scored = (one[0] for one in vocabulary if isinstance(one, list) and one)
            vocabulary = {str(piece): id for id, piece in enumerate(scored)}
        if not isinstance(vocabulary, dict) or not vocabulary:
            self._fail("model.vocab", "must map pieces to ids")
        tokens = [_object(token) for token in _list(self._pipeline.get("added_tokens"))]
        by_id: dict[int, tuple[str, int]] = {}
        for piece, id in vocabulary.items():
            self._put(by_id, id, piece, self._type(piece))
        for token in tokens:
            kind = _CONTROL if token.get("special") else _USER_DEFINED
            self._put(by_id, token.get("id"), token.get("content"), kind)
        size = self._size(max(by_id) + 1, len(by_id))
        unused = ((f"[PAD{id}]", _UNUSED) for id in range(size))  # as llama.cpp's converter does
        entries = [by_id.get(id, pad) for id, pad in enumerate(unused)]
        return [piece for piece, _ in entries], [kind for _, kind in entries]

    def _put(self, by_id: dict[int, tuple[str, int]], id: object, piece: object, kind: int) -> None:
        if type(id) is not int or not 0 <= id < 1 << 24 or not isinstance(piece, str):
            self._fail("model.vocab", f"maps {piece!r} to {id!r}, which is no token id")
        by_id[id] = (piece, kind)

    def _type(self, piece: str) -> int:
        if piece == self._model.get("unk_token"):
            return _UNKNOWN
        is_byte = len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
        return _BYTE if is_byte and self._model.get("byte_fallback") else _NORMAL

    def _size(self, known: int, tokens: int) -> int:
        """Number of rows of the embedding, which may exceed the number of tokens."""
        size = self._config.get("vocab_size")
        if not isinstance(size, int):
            if known > tokens + _MOST_UNUSED:
                self._fail("model.vocab", f"has token ids up to {known - 1}, and {tokens} tokens")
            return known
        if known > size:
            self._fail(
                "model.vocab",
                f"has token ids up to {known - 1}, and vocab_size in config.json is {size}",
            )
        return size

    def _merges(self) -> list[str]:
        merges = self._model.get("merges")
        if not isinstance(merges, list):
            self._fail("model.merges", "must be a list")
        return [" ".join(map(str, one)) if isinstance(one, list) else str(one) for one in merges]

    # --- roles -----------------------------------------------------------------------------------

    def _roles(self, pieces: list[str]) -> dict[str, int]:
        """Ids of BOS and EOS: by their text in tokenizer_config.json, else from config.json."""
        roles = {}
        for role in ("bos", "eos"):
            named = self._settings.get(f"{role}_token")
            text = named.get("content") if isinstance(named, dict) else named
            if isinstance(text, str) and text in pieces:
                roles[role] = pieces.index(text)
            else:
                ids = _ids(self._config.get(f"{role}_token_id"))
                roles |= {role: ids[0]} if ids else {}
        return roles

    def _template(self) -> _Template:
        """The special tokens that the post-processor puts around one text and between two."""
        step = _object(self._pipeline.get("post_processor"))
        for one in map(_object, _list(step.get("processors")) or [step]):
            if one.get("type") == "TemplateProcessing":
                return _Template.of(one)
            if one.get("type") in ("BertProcessing", "RobertaProcessing"):
                begin, end = (_ids(_list(one.get(key))[-1:]) for key in ("cls", "sep"))
                if begin and end:
                    twice = 2 if one["type"] == "RobertaProcessing" else 1
                    return _Template(True, True, begin[0], end[0], (end[0],) * twice)
        return _Template()

    # --- text to words ---------------------------------------------------------------------------

    def _patterns(self, step: object) -> list[str]:
        """The patterns that split a text into words, in the order of their use."""
        if step is None:
            return []
        found = _object(step)
        match found.get("type"):
            case "Sequence":
                steps = _list(found.get("pretokenizers"))
                return [pattern for one in steps for pattern in self._patterns(one)]
            case "Split":
                return [self._split(found)]
            case "Digits":
                return [r"\p{N}" if found.get("individual_digits") else r"\p{N}+"]
            case "ByteLevel" if not found.get("add_prefix_space"):
                return [_GPT2] if found.get("use_regex", True) else []
        return self._refuse("pre_tokenizer", step, "Sequence, Split, Digits, ByteLevel")

    def _split(self, step: dict[str, Any]) -> str:
        pattern, behaviour = _object(step.get("pattern")), step.get("behavior")
        # "Removed" with invert keeps the matches: all of a text, if they take every character.
        if behaviour not in ("Isolated", "Removed") or step.get("invert") != (
            behaviour == "Removed"
        ):
            self._refuse("pre_tokenizer.behavior", behaviour, "Isolated")
        regex = pattern.get("Regex")
        if not isinstance(regex, str):
            self._refuse("pre_tokenizer.pattern", pattern, "Regex")
        return regex

    def _adds_space(self) -> bool:
        """Whether the tokenizer adds a space before a text."""
        step = _object(self._pipeline.get("normalizer"))
        steps = [_object(one) for one in _list(step.get("normalizers")) or [step]]
        if any(one.get("type") == "Prepend" for one in steps):
            return True
        words = _object(self._pipeline.get("pre_tokenizer"))
        return words.get("type") == "Metaspace" and words.get("prepend_scheme") != "never"


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [id for id in values if type(id) is int and id >= 0]
