"""A subscriber that rebuilds what is cached, as precise scorers of prefixes do.

It decodes with the definitions of vLLM (vllm/distributed/kv_events.py), and follows the sequence
with replays as llm-d's subscriber does. An `AssertionError` names the event that cannot be right.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from heddle.state import PAGE_TOKENS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.extensions.kv_events.publisher import Publisher


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """The base class of events."""


class BlockStored(KVCacheEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


END = 2**64 - 1


class Scorer:
    """Follows one publisher.

    Attributes:
        blocks: salt and tokens of the prefix of each block, by model and hash.
        last: sequence number of the last batch that was applied; -1 before.
        gaps: numbers of missed batches that were asked for.
        cleared: how often all blocks were cleared.
        live: batches that came without being asked for.
    """

    def __init__(self, publisher: Publisher, topic: str = "kv@") -> None:
        self.context = zmq.Context()
        self.events = self._connect(zmq.SUB, publisher.address)
        self.events.subscribe(topic)
        self.address = publisher.replay_address
        self.blocks: dict[tuple[str, int], tuple[str | None, tuple[int, ...]]] = {}
        self.last = -1
        self.gaps: list[int] = []
        self.cleared = self.live = 0

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        opened = self.context.socket(kind)
        opened.linger = 0
        opened.rcvhwm = 0
        opened.connect(address)
        return opened

    def close(self) -> None:
        self.context.destroy(linger=0)

    def until(self, condition: Callable[[], bool], *, asks: bool = True) -> None:
        """Follow live batches until the condition holds. If none comes and it `asks`, it asks."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the scorer did not learn it in time"
            if self.events.poll(20):
                self.take(self.events.recv_multipart())
            elif asks:
                self.ask(self.last + 1)

    def take(self, frames: list[bytes]) -> None:
        """Take a live message. Ask for those before it that are missing."""
        topic, number, payload = frames
        assert len(number) == 8
        sequence = int.from_bytes(number, "big")
        self.live += 1
        if sequence < self.last and sequence == 0:  # the publisher started over
            self.last = -1
        if sequence > self.last + 1 and self.address:
            self.gaps.append(sequence - self.last - 1)
            self.ask(self.last + 1)
        if sequence == self.last + 1:  # else what is missing was lost, and numbers begin again
            self.apply(topic, sequence, payload)

    def ask(self, first: int) -> int:
        """Ask for the batches from a number on and apply them. Returns how many came."""
        asked = self._connect(zmq.DEALER, self.address)
        asked.send_multipart([b"", first.to_bytes(8, "big")])
        count = 0
        while asked.poll(PATIENCE * 1000):
            delimiter, topic, number, payload = asked.recv_multipart()
            sequence = int.from_bytes(number, "big")
            assert delimiter == b""
            if sequence == END:
                assert payload == b""
                break
            assert sequence == first + count, "answers have a gap"
            count += 1
            if sequence > self.last:
                self.apply(topic, sequence, payload)
        else:
            raise AssertionError("the publisher did not answer")
        asked.close()
        return count

    def apply(self, topic: bytes, sequence: int, payload: bytes) -> None:
        self.last = sequence
        kind, _, model = topic.decode().split("@")
        batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
        assert kind == "kv"
        assert batch.data_parallel_rank == 0
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.store(model, event)
            elif isinstance(event, BlockRemoved):
                for one in event.block_hashes:
                    del self.blocks[model, one]
            else:
                self.cleared += 1
                self.blocks.clear()

    def store(self, model: str, event: BlockStored) -> None:
        assert event.block_size == PAGE_TOKENS
        assert len(event.token_ids) == PAGE_TOKENS * len(event.block_hashes)
        assert (event.medium, event.lora_id, event.lora_name) == ("GPU", None, None)
        prefix: tuple[int, ...] = ()
        salt = None
        if event.parent_block_hash is not None:
            salt, prefix = self.blocks[model, event.parent_block_hash]
            assert event.extra_keys is None
        elif event.extra_keys is not None:
            [(salt,), *others] = event.extra_keys
            assert others == [None] * (len(event.block_hashes) - 1)
        for index, one in enumerate(event.block_hashes):
            assert (model, one) not in self.blocks, "scorers count blocks that are stored twice"
            prefix += tuple(event.token_ids[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS])
            self.blocks[model, one] = salt, prefix
