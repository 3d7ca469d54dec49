"""Vocabularies as ranked bytes: Mistral's tekken.json, and tiktoken.model of Kimi K2.

Byte-level BPE joins the two neighbours whose bytes together have the lowest rank. Each function
returns what a tokenizer.json would hold: a token's rank orders the merges that make it, one for
each way to split its bytes into two tokens. `mistral_common` and `tiktoken` define both files.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from heddle.errors import ModelFileError
from heddle.text.tokenizer.bpe import ALPHABET
from heddle.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from heddle.weights.huggingface.json_files import read_json, read_limited, read_optional_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from heddle.weights.huggingface.json_files import Config

_MOST_TOKENS = 1 << 20
_LONGEST = 1024
"""Bytes of a token. The longest of known files has 256, and each is split at every byte."""
_MOST_SPECIAL = 1 << 16

_FIRST_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
"""Special tokens of files that list none, up to version 7."""
_RESERVED = 256
"""Ids after the ranks of tiktoken.model that Kimi keeps for special tokens."""


def read_tekken(path: Path) -> Config:
    """The tokenizer of a tekken.json. Ids of special tokens come before the ranks.

    Raises:
        ModelFileError: a part is missing, has the wrong type or is out of bounds.
    """
    content = read_json(path)
    config = content.get("config")
    config = config if isinstance(config, dict) else {}
    size, special = (
        _count(path, config, name) for name in ("default_vocab_size", "default_num_special_tokens")
    )
    if not special <= size or special > _MOST_SPECIAL:
        raise _wrong(path, f"{special} special tokens of {size} tokens")
    listed = content.get("special_tokens")
    named = (
        [one.get("token_str") if isinstance(one, dict) else None for one in listed]
        if isinstance(listed, list)
        else list(_FIRST_SPECIAL)
    )
    named += [f"<SPECIAL_{id}>" for id in range(len(named), special)]
    vocabulary = content.get("vocab")
    entries = vocabulary if isinstance(vocabulary, list) else []
    ranked = [
        _bytes(path, one.get("token_bytes") if isinstance(one, dict) else None)
        for one in entries[: size - special]
    ]
    if len(ranked) != size - special:
        raise _wrong(path, f"{len(ranked)} tokens where {size - special} are said to be")
    begin = {"id": "<s>", "ids": [1], "tokens": ["<s>"]}
    return _pipeline(
        path,
        ranked,
        special,
        [(id, str(text)) for id, text in enumerate(named)],
        config.get("pattern"),
    ) | {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
            "pair": [],
            "special_tokens": {"<s>": begin},
        }
    }


def read_tiktoken(path: Path) -> Config:
    """The tokenizer of a tiktoken.model, whose special tokens are in tokenizer_config.json.

    Raises:
        ModelFileError: a line is not a token in base64 and its rank, or a rank is missing.
    """
    ranked: list[bytes] = []
    for line in read_limited(path).split(b"\n"):
        if not line:
            continue
        token, _, rank = line.partition(b" ")
        if rank.strip() != str(len(ranked)).encode():
            raise _wrong(path, f"the rank {rank[:20]!r} where {len(ranked)} must follow")
        ranked.append(_bytes(path, token.decode(errors="replace")))
    settings = read_optional_json(path.with_name("tokenizer_config.json"))
    added = settings.get("added_tokens_decoder")
    listed = added if isinstance(added, dict) else {}
    first = len(ranked)
    special = []
    for id in range(first, first + _RESERVED):
        one = listed.get(str(id))
        text = one.get("content") if isinstance(one, dict) else None
        special.append((id, text if isinstance(text, str) else f"<|reserved_token_{id}|>"))
    [pattern] = PRE_TOKENIZERS["kimi-k2"].patterns
    return _pipeline(path, ranked, 0, special, pattern)


def _pipeline(
    path: Path,
    ranked: Sequence[bytes],
    first: int,
    special: Iterable[tuple[int, str]],
    pattern: object,
) -> Config:
    """tokenizer.json of these tokens: token i of `ranked` has the id `first` + i."""
    if not isinstance(pattern, str) or not 0 < len(ranked) <= _MOST_TOKENS:
        raise _wrong(path, f"{len(ranked)} tokens and the pattern {pattern!r}")
    ids = {token: id for id, token in enumerate(ranked, first)}
    if len(ids) != len(ranked):
        raise _wrong(path, "a token twice")
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "model": {
            "type": "BPE",
            "vocab": {_piece(token): id for token, id in ids.items()},
            "merges": _merges(ranked, ids),
            "ignore_merges": True,
        },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "added_tokens": [{"id": id, "content": text, "special": True} for id, text in special],
    }


def _merges(ranked: Sequence[bytes], ids: dict[bytes, int]) -> list[str]:
    """All splits of each token into two tokens, the lowest rank first."""
    found = []
    for token in ranked:
        splits = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [f"{_piece(left)} {_piece(right)}" for left, right in known]
    return found


def _piece(token: bytes) -> str:
    """The token in the alphabet of byte-level BPE."""
    return "".join(map(ALPHABET.__getitem__, token))


def _bytes(path: Path, text: object) -> bytes:
    try:
        token = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        token = b""
    if not 0 < len(token) <= _LONGEST:
        raise _wrong(
            path, f"the token {str(text)[:40]!r}, which is not 1 to {_LONGEST} bytes in base64"
        )
    return token


def _count(path: Path, config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
        raise _wrong(path, f"config.{name} {value!r}")
    return value


def _wrong(path: Path, problem: str) -> ModelFileError:
    return ModelFileError(f"{path.name} has {problem}; fetch another file", field=path.name)
