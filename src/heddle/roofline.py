"""The roofline of a model on a machine: what steps read and multiply, and how fast they could be.

No step is quicker than reading its bytes from memory, nor than its multiply-adds at the peak of the
instruction that does them::

    floor = max(bytes / weights_rate, multiply_adds / multiply_rate)

Counted are the matrices, and the keys and values that attention reads while decoding. Arithmetic of
attention, norms and sampling is not, so that a floor is never too high.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """What the hardware can do at most, measured with the threads and instructions of an executor.

    Attributes:
        threads: how many worked at once.
        isa: instruction level.
        multiplication: the instruction that quantised matmuls multiply with.
        multiply_rate: its integer multiply-adds per second, from registers.
        memory_rate: bytes read per second from memory.
        memory_buffer: bytes of the buffer that was read for that, far more than the caches hold.
        weights_rate: bytes read per second from a buffer as large as the weights; more than
            `memory_rate` where caches hold a part of them.
    """

    threads: int
    isa: str
    multiplication: str
    multiply_rate: float
    memory_rate: float
    memory_buffer: int
    weights_rate: float

    def best(self, other: Limits) -> Limits:
        """The higher of each rate: what disturbs a measurement only ever lowers it."""
        return replace(
            self,
            multiply_rate=max(self.multiply_rate, other.multiply_rate),
            memory_rate=max(self.memory_rate, other.memory_rate),
            weights_rate=max(self.weights_rate, other.weights_rate),
        )


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time that some work can take.

    Attributes:
        seconds: that time.
        bound_by: what takes it, `memory` or `compute`.
    """

    seconds: float
    bound_by: str


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to read and integer multiply-adds to do."""

    bytes: int
    multiply_adds: int

    def floor(self, limits: Limits) -> Floor:
        """The least time this takes where `limits` hold."""
        reading = self.bytes / limits.weights_rate
        multiplying = self.multiply_adds / limits.multiply_rate
        return Floor(max(reading, multiplying), "memory" if reading > multiplying else "compute")


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What the steps of a model cost, whatever the machine.

    Attributes:
        weight_bytes: of all matrices as they lie in memory; a step reads them once. An embedding
            table counts if it is the output matrix as well.
        token_multiply_adds: per token of a step.
        row_multiply_adds: per token whose logits are wanted, beside that.
        kv_layers: per layer that attends, its window (0 for none) and the bytes of one position's
            keys and values.
    """

    weight_bytes: int
    token_multiply_adds: int
    row_multiply_adds: int
    kv_layers: tuple[tuple[int, float], ...]

    @property
    def score_cost(self) -> float:
        """What logits of a token cost beside computing it, as a part of that."""
        return self.row_multiply_adds / max(1, self.token_multiply_adds)

    def kv_bytes(self, depth: int) -> int:
        """Keys and values that a token reads which has `depth` positions before it."""
        return round(
            sum((min(depth, window) if window else depth) * size for window, size in self.kv_layers)
        )

    def decode_step(self, streams: int, depth: int) -> Work:
        """A step that makes one token for each stream, all of them `depth` tokens long."""
        tokens = self.token_multiply_adds + self.row_multiply_adds
        return Work(self.weight_bytes + streams * self.kv_bytes(depth), streams * tokens)

    def prompts(self, streams: int, tokens: int, batch_tokens: int) -> Work:
        """Prompts of `tokens` tokens up to the first logits, in steps of `batch_tokens`."""
        steps = -(-streams * tokens // batch_tokens)
        multiply_adds = tokens * self.token_multiply_adds + self.row_multiply_adds
        return Work(steps * self.weight_bytes, streams * multiply_adds)
