r"""The tokenizer of RWKV World: at each byte of a text, the longest token that begins there.

Folders have rwkv_vocab_v20230424.txt, a line for each token: its id, a Python literal of its text
or bytes, and its length in bytes (BlinkDL/ChatRWKV, `tokenizer/rwkv_tokenizer.py`). GGUF files have
each token's bytes with escapes (`\n`, `\xff`; llama.cpp, `llama_unescape_rwkv_token`), and so have
pieces here.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from heddle.errors import ModelFileError
from heddle.text.tokenizer.vocabulary import TokenType
from heddle.weights.huggingface.json_files import read_limited, read_optional_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from heddle.text.tokenizer.vocabulary import Vocabulary
    from heddle.weights.checkpoint import TokenizerSpec
    from heddle.weights.huggingface.json_files import Config

_LONGEST = 1024
"""Bytes of a token. The longest of the known vocabulary has 128."""
_LONGEST_LINE = 8 * _LONGEST
_END = "<|rwkv_tokenizer_end_of_text|>"
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_PLAIN = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class WorldEncoder:
    """Plain text to ids. Safe to share between threads."""

    def __init__(self, ids: Mapping[bytes, int]) -> None:
        """`ids` have each single byte, and longer tokens."""
        self._ids = ids
        lengths: dict[bytes, set[int]] = {}
        for token in ids:
            if len(token) > 1:
                lengths.setdefault(token[:2], set()).add(len(token))
        self._lengths = {two: sorted(own, reverse=True) for two, own in lengths.items()}

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        data, found, start = text.encode(), [], 0
        while start < len(data):
            for length in self._lengths.get(data[start : start + 2], ()):
                id = self._ids.get(data[start : start + length])
                if id is not None and start + length <= len(data):
                    break
            else:
                id, length = self._ids[data[start : start + 1]], 1
            found.append(id)
            start += length
        return found


class World:
    """The kind; see :class:`heddle.weights.tokenizer_kind.TokenizerKind`."""

    def read(self, spec: TokenizerSpec, source: Mapping[str, Any], /) -> TokenizerSpec:
        """`spec` as it is: a vocabulary is all that this kind has."""
        return spec

    def build(
        self, vocabulary: Vocabulary, spec: TokenizerSpec, /
    ) -> tuple[WorldEncoder, list[bytes]]:
        """See `TokenizerKind`."""
        piece_bytes = [
            _bytes_of(piece, type)
            for piece, type in zip(vocabulary.pieces, vocabulary.types, strict=True)
        ]
        ids: dict[bytes, int] = {}
        for id, (token, type) in enumerate(zip(piece_bytes, vocabulary.types, strict=True)):
            if type == TokenType.NORMAL and token:
                ids.setdefault(token, id)
        missing = [byte for byte in range(256) if bytes([byte]) not in ids]
        if missing:
            spec.fail("pieces", f"has no token of the single byte 0x{missing[0]:02x}")
        return WorldEncoder(ids), piece_bytes


def _bytes_of(piece: str, type: int) -> bytes:
    """What a token adds to a text."""
    if type == TokenType.USER_DEFINED:
        return piece.encode()
    if type != TokenType.NORMAL:
        return b""
    return _ESCAPE.sub(
        lambda match: (
            bytes.fromhex(match[1].decode()) if match[1] else _PLAIN.get(match[2], match[2])
        ),
        piece.encode(),
    )


def read_vocabulary(path: Path) -> Config:
    """What a tokenizer.json would hold.

    Raises:
        ModelFileError: a line is no token, or an id or a token comes twice.
    """
    vocabulary: dict[str, int] = {}
    lines = read_limited(path).decode(errors="replace").rstrip("\n").split("\n")
    for number, line in enumerate(lines, 1):
        id, token = _token(path, number, line)
        piece = repr(token)[2:-1]
        if piece in vocabulary:
            raise _wrong(path, number, "has a token that an earlier line has")
        vocabulary[piece] = id
    if len(set(vocabulary.values())) < len(vocabulary):
        raise _wrong(path, len(vocabulary), "or one before it has an id that another line has")
    settings = read_optional_json(path.with_name("tokenizer_config.json"))
    listed = settings.get("added_tokens_decoder")
    added = [{"id": 0, "content": _END, "special": True}]
    for id_text, one in (listed if isinstance(listed, dict) else {}).items():
        if isinstance(one, dict) and id_text.isdecimal() and int(id_text):
            kept = {"content": one.get("content"), "special": one.get("special")}
            added.append({"id": int(id_text)} | kept)
    return {"model": {"type": "RWKV World", "vocab": vocabulary}, "added_tokens": added}


def _token(path: Path, number: int, line: str) -> tuple[int, bytes]:
    """The id and the bytes of a line."""
    id, _, rest = line.partition(" ")
    literal, _, size = rest.rpartition(" ")
    value: object = None
    if len(line) <= _LONGEST_LINE:
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
    token = value.encode(errors="replace") if isinstance(value, str) else value
    if not isinstance(token, bytes) or not 0 < len(token) <= _LONGEST:
        raise _wrong(path, number, f"is no token of 1 to {_LONGEST} bytes: {line[:60]!r}")
    if str(len(token)) != size.strip() or not id.isdecimal() or len(id) > 7:
        raise _wrong(path, number, f"has another length than it says, or no id: {line[:60]!r}")
    return int(id), token


def _wrong(path: Path, number: int, problem: str) -> ModelFileError:
    return ModelFileError(
        f"{path.name}: line {number} {problem}; the file is damaged, fetch it again",
        field=path.name,
    )


KIND = GGUF_KIND = World()
