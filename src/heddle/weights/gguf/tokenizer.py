"""The tokenizer that a GGUF file's `tokenizer.ggml.*` keys describe.

This module checks that the value of each key is of the right kind. Errors name the key. The
tokenizer interprets the values.
"""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.weights.checkpoint import TokenizerSpec
from heddle.weights.tokenizer_kind import kind_of, kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX = "tokenizer.ggml."

TOKENIZER_MODEL = f"{PREFIX}model"
"""The key without which a file has no tokenizer."""

ALGORITHMS = {"gpt2": "bpe", "llama": "sentencepiece", "gemma4": "sentencepiece"}
_KEYS = {
    "algorithm": "model",
    "pieces": "tokens",
    "types": "token_type",
    "pre_tokenizer": "pre",
    "add_bos": "add_bos_token",
    "add_eos": "add_eos_token",
}
ROLES = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "fim_prefix": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suffix": ("fim_suf_token_id", "suffix_token_id"),
    "fim_middle": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_repository": ("fim_rep_token_id",),
    "fim_separator": ("fim_sep_token_id",),
}
"""Keys that name a role's token. As in llama.cpp, the last key that is present counts."""

_ENDS = ("eos", "eot", "eom")
"""Roles of tokens that end a generation."""


def read_tokenizer(metadata: Mapping[str, object]) -> TokenizerSpec:
    """The description of the tokenizer in this metadata.

    Raises:
        UnsupportedModelError: its algorithm is not supported.
        ModelFileError: a key is missing or of the wrong kind.
    """
    source = _TokenizerKeys(metadata)
    model = source.text("model")
    if model is None:
        raise _missing("model")
    kind = kind_of(model)
    if model not in ALGORITHMS and kind is None:
        known = ", ".join([*ALGORITHMS, *kinds()])
        raise UnsupportedModelError(
            f"tokenizer model {model!r} is not supported; supported: {known}",
            param=f"{PREFIX}model",
        )
    scores = source.numbers("scores") if model == "llama" else []
    if scores is None:
        raise _missing("scores")
    spec = TokenizerSpec(
        algorithm=ALGORITHMS.get(model, model),
        pieces=source.strings("tokens"),
        types=source.integers("token_type"),
        merges=[] if kind is not None or model == "llama" else source.strings("merges"),
        scores=scores,
        pre_tokenizer=source.text("pre"),
        roles=_roles(source),
        add_bos=source.flag("add_bos_token"),
        add_eos=source.flag("add_eos_token"),
        add_space_prefix=False if model == "gemma4" else source.flag("add_space_prefix"),
        label=_label,
    )
    return spec if kind is None else kind.read(spec, metadata)


def _label(name: str) -> str:
    if name in ROLES:
        return PREFIX + ROLES[name][0]
    return PREFIX + _KEYS.get(name, name)


def _roles(source: _TokenizerKeys) -> dict[str, int]:
    named = ((role, source.token_id(key)) for role, keys in ROLES.items() for key in keys)
    return {role: id for role, id in named if id is not None}


def end_tokens_of(metadata: Mapping[str, object]) -> dict[int, str | None]:
    """Ids of the tokens that the metadata names as ends of a generation, and their texts."""
    ids = [metadata.get(PREFIX + key) for role in _ENDS for key in ROLES[role]]
    pieces = metadata.get(f"{PREFIX}{_KEYS['pieces']}")
    known = pieces if isinstance(pieces, abc.Sequence) else ()
    return {
        id: str(known[id]) if id < len(known) else None for id in ids if type(id) is int and id >= 0
    }


class _TokenizerKeys:
    """A view of model metadata. Names are keys without `tokenizer.ggml.`.

    Arrays may be any iterable, such as NumPy arrays. Each method raises :class:`ModelFileError`
    with the key if its value is of the wrong kind.
    """

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def text(self, name: str) -> str | None:
        value = self._metadata.get(PREFIX + name)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, value, "a string")
        return value

    def flag(self, name: str) -> bool | None:
        value = self._metadata.get(PREFIX + name)
        if value is not None and not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def token_id(self, name: str) -> int | None:
        """A whole number; None if the file has none."""
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, value, "a token id")
        return value

    def strings(self, name: str) -> list[str]:
        values = self._array(name, "strings")
        if values is None:
            raise _missing(name)
        strings = [value for value in values if isinstance(value, str)]
        if len(strings) != len(values):
            raise _wrong(name, next(v for v in values if not isinstance(v, str)), "all strings")
        return strings

    def numbers(self, name: str) -> list[float] | None:
        """Numbers; None if the file has none."""
        values = self._array(name, "numbers")
        if values is None:
            return None
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) != len(values):
            wrong = next(v for v in values if not isinstance(v, int | float))
            raise _wrong(name, wrong, "all numbers")
        return numbers

    def integers(self, name: str) -> list[int] | None:
        """Whole numbers; None if the file has none."""
        numbers = self.numbers(name)
        if numbers is None:
            return None
        wrong = next((number for number in numbers if number % 1 != 0), None)
        if wrong is not None:  # also NaN and infinities: % makes NaN of them
            raise _wrong(name, wrong, "all whole numbers")
        return [int(number) for number in numbers]

    def _array(self, name: str, kind: str) -> list[object] | None:
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise _wrong(name, value, f"an array of {kind}")
        items: Iterable[object] = value.tolist() if hasattr(value, "tolist") else value
        return list(items)


def _missing(name: str) -> ModelFileError:
    return ModelFileError(f"{PREFIX}{name} is missing", field=PREFIX + name)


def _wrong(name: str, value: object, expected: str) -> ModelFileError:
    return ModelFileError(f"{PREFIX}{name} must be {expected}, got {value!r}", field=PREFIX + name)
