"""vLLM's events as msgpack: tagged arrays, as in vllm/distributed/kv_events.py of vLLM.

Newer versions write maps (https://github.com/vllm-project/vllm/pull/42892); consumers of these read
arrays, too, and older consumers read only arrays. A message has three frames: the topic, the
sequence number in 8 bytes, and a batch.
"""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.extensions.kv_events.blocks import Blocks

MEDIUM = "GPU"
"""vLLM's name of the memory from which attention reads, on any device. Scorers prefer it."""

END = (-1).to_bytes(8, "big", signed=True)
"""The sequence number of the last answer to a request for missed batches."""


class Event(msgspec.Struct, array_like=True, omit_defaults=True, tag=True, frozen=True):
    """An event. Its array begins with the name of its class."""


class BlockStored(Event, frozen=True):
    """Consecutive blocks of one prefix are cached. `extra_keys` has a list or None a block."""

    block_hashes: Sequence[int]
    parent_block_hash: int | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: Sequence[Sequence[str] | None] | None = None


class BlockRemoved(Event, frozen=True):
    """Blocks are no longer cached."""

    block_hashes: Sequence[int]
    medium: str | None


class AllBlocksCleared(Event, frozen=True):
    """No block is cached. Consumers drop the blocks of all models of this server."""


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """What one message holds.

    Attributes:
        ts: when it was sent, in s since 1970.
        events: in the order in which they happened.
        data_parallel_rank: always 0.
    """

    ts: float
    events: Sequence[Event]
    data_parallel_rank: int | None = None


class Translator:
    """Makes events of one model's blocks.

    Consumers tell blocks apart by their hashes alone, across models and servers. So the name of the
    model is part of each hash.
    """

    def __init__(self, model: str) -> None:
        name = model.encode("utf-8", "surrogatepass")
        self._mask = int.from_bytes(blake2b(name, digest_size=8).digest(), "big")

    def stored(self, blocks: Blocks) -> BlockStored:
        """The event of stored blocks. As in vLLM, the salt is an extra key of the first block."""
        salted = None
        if blocks.salt is not None:
            salt = blocks.salt.encode("utf-8", "replace").decode()  # msgpack has no surrogates
            salted = [[salt], *[None] * (len(blocks.hashes) - 1)]
        return BlockStored(
            [one ^ self._mask for one in blocks.hashes],
            None if blocks.parent is None else blocks.parent ^ self._mask,
            blocks.tokens.tolist(),
            PAGE_TOKENS,
            lora_id=None,
            medium=MEDIUM,
            lora_name=None,
            extra_keys=salted,
        )

    def removed(self, hashes: Sequence[int]) -> BlockRemoved:
        """The event of removed blocks."""
        return BlockRemoved([one ^ self._mask for one in hashes], MEDIUM)


_encoder = msgspec.msgpack.Encoder()


def packed(events: Sequence[Event]) -> bytes:
    """A batch of events, as bytes."""
    return _encoder.encode(EventBatch(time.time(), events, 0))
