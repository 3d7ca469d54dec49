"""Keys of requests: chained hashes of the blocks of a prompt, equal on every machine.

A key is a list of hashes. Hash i stands for all bytes of the prompt up to the end of block i, so
two prompts share their first i hashes if they begin with the same bytes, and only then.

Three decisions, and why:

- *The fleet's keys hash text.* An ingress has no tokenizer, and must not wait for one. It hashes
  the bytes of the prompt as the request has them. Replicas do not compute keys: each request brings
  its key, and a replica publishes the hashes of the keys whose prompts its cache holds. So both
  sides always have the same kind, whatever the model's template and tokenizer do to the text.
- *Tokens are bytes too.* A caller that has token ids makes the key from them as little-endian
  int32, with the same code. 16 tokens are one block of 64 bytes, and 64 bytes of text are about 16
  tokens: one table of block ends serves both. The root of a key contains its kind, so that text
  never matches tokens.
- *Blocks grow with depth.* The first 16 blocks have 64 bytes; then each block has about 1/8 of the
  bytes before it. 72 hashes cover 156,000 tokens, where equal blocks would need 9,763 hashes. A
  shared prefix is underestimated by at most 1/8, and a router remembers many times more prompts.

A hash has `HASH_BITS` bits. A Python integer of 60 bits takes 32 bytes, one of 64 bits takes 48;
and a published word has room for the kind of its event.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BLOCK_BYTES = 64
BYTES_PER_TOKEN = 4  # of an int32 token id, and about of text
MOST_BLOCKS = 72
HASH_BITS = 60
_MOST_TOKENS = 1 << 32
HASH_MASK = (1 << HASH_BITS) - 1

_EQUAL_BLOCKS, _GROWTH = 16, 8


@dataclass(frozen=True, slots=True)
class Key:
    """What a router knows of a prompt.

    Attributes:
        hashes: of its prefixes that end with a block, the shortest first.
        tokens: of the whole prompt. Of text: about.
    """

    hashes: tuple[int, ...] = ()
    tokens: int = 0


def _ends() -> tuple[int, ...]:
    ends: list[int] = []
    for block in range(MOST_BLOCKS):
        last = ends[-1] if ends else 0
        grown = last // _GROWTH // BLOCK_BYTES * BLOCK_BYTES if block >= _EQUAL_BLOCKS else 0
        ends.append(last + max(BLOCK_BYTES, grown))
    return tuple(ends)


ENDS = _ends()
"""Bytes of the prompt up to the end of each block."""

TOKENS = (0, *(end // BYTES_PER_TOKEN for end in ENDS))
"""Tokens that the first n hashes of a key stand for, by n. Of text: about."""


def root(model: str, adapter: str = "", tenant: str = "", *, kind: str = "text") -> bytes:
    """The salt of keys: prompts match only within one model, adapter, tenant and kind.

    Args:
        model: the model's fingerprint, or its name where all replicas have the same files.
        tenant: whose cache it is. "": prompts of all clients may share prefixes.
        kind: "text" or "tokens".
    """
    salt = blake2b(digest_size=8)
    for part in (kind, model, adapter, tenant):
        text = part.encode(errors="surrogatepass")
        salt.update(len(text).to_bytes(8, "little") + text)
    return salt.digest()


def key_of_bytes(salt: bytes, pieces: Iterable[bytes]) -> Key:
    """The key of a prompt that is the concatenation of `pieces`.

    A last block that is not full has no hash. Bytes after the last of `MOST_BLOCKS` only count.

    Args:
        salt: of `root`.
    """
    prompt, size = bytearray(), 0
    for piece in pieces:
        prompt += piece[: ENDS[-1] - len(prompt)]
        size += len(piece)
    hashes, parent, begin, view = [], salt, 0, memoryview(prompt)
    for end in ENDS:
        if end > len(prompt):
            break
        digest = blake2b(parent, digest_size=8)
        digest.update(view[begin:end])
        parent, begin = digest.digest(), end
        hashes.append(int.from_bytes(parent, "little") & HASH_MASK)
    return Key(tuple(hashes), size // BYTES_PER_TOKEN)


def key_of_tokens(salt: bytes, tokens: Sequence[int]) -> Key:
    """The key of a prompt of token ids, each within int32."""
    return key_of_bytes(salt, [np.asarray(tokens, "<i4").tobytes()])


def pack(key: Key) -> bytes:
    """The key as bytes: 8 little-endian bytes for its tokens, and for each hash."""
    return np.array([key.tokens, *key.hashes], "<u8").tobytes()


def unpack(packed: bytes) -> Key:
    """The key that `pack` has packed; b"" is the key of an unknown prompt.

    Raises:
        InvalidRequestError: it is no such key.
    """
    if not packed:
        return Key()
    if len(packed) % 8 or not 8 <= len(packed) <= 8 * (1 + MOST_BLOCKS):
        raise InvalidRequestError(
            f"key has {len(packed)} bytes; it must have 8 for its tokens and 8 for each of at most "
            f"{MOST_BLOCKS} hashes. Send what routing.blocks.pack returns.",
            param="key",
        )
    tokens, *hashes = np.frombuffer(packed, "<u8").tolist()
    if tokens > _MOST_TOKENS or any(one > HASH_MASK for one in hashes):
        raise InvalidRequestError(
            f"key has {tokens} tokens and the largest hash {max(hashes, default=0):#x}; it must "
            f"have at most {_MOST_TOKENS} tokens and hashes of {HASH_BITS} bits. "
            "Send what routing.blocks.pack returns.",
            param="key",
        )
    return Key(tuple(hashes), max(tokens, TOKENS[len(hashes)]))
