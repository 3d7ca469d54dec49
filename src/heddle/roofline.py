"""The roofline of a model on a machine: what steps read and multiply, and the least time they take.

No step is quicker than reading its bytes from memory. No step is quicker than its multiply-adds at
the peak rate of their instruction::

    floor = max(bytes / weights_rate, multiply_adds / multiply_rate)

This counts the matrices, and in decode the keys and values that attention reads, and the states
that recurrences read and write. It does not count the arithmetic of attention, recurrences, norms
and sampling, so a floor is never too high. One exception: of the experts of a mixture, a step of
several tokens reads as many as uniform routing uses on average. Tokens that share experts read
fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """The peak rates of the hardware, measured with the threads and instructions of an executor.

    Attributes:
        threads: number of threads.
        isa: instruction level.
        multiplication: the instruction with which quantised matmuls multiply.
        multiply_rate: its integer multiply-adds per second, from registers.
        memory_rate: bytes read per second from memory.
        memory_buffer: bytes of the buffer for `memory_rate`, far more than the caches hold.
        weights_rate: bytes read per second from a buffer as large as the weights. It is more than
            `memory_rate` if caches hold a part of the buffer.
        barriers: how often the threads wait for one another in a step of one token; 0 where nothing
            counts it.
        barrier_seconds: what one of these costs.
    """

    threads: int
    isa: str
    multiplication: str
    multiply_rate: float
    memory_rate: float
    memory_buffer: int
    weights_rate: float
    barriers: int = 0
    barrier_seconds: float = 0.0

    def best(self, other: Limits) -> Limits:
        """The better of each figure. Disturbances of a measurement only make it worse."""
        return replace(
            self,
            multiply_rate=max(self.multiply_rate, other.multiply_rate),
            memory_rate=max(self.memory_rate, other.memory_rate),
            weights_rate=max(self.weights_rate, other.weights_rate),
            barrier_seconds=min(self.barrier_seconds, other.barrier_seconds),
        )


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time that some work can take.

    Attributes:
        seconds: the time.
        bound_by: the limiting resource, `memory` or `compute`.
    """

    seconds: float
    bound_by: str


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to read and integer multiply-adds to do."""

    bytes: int
    multiply_adds: int

    def floor(self, limits: Limits) -> Floor:
        """The least time of this work on hardware with `limits`."""
        reading = self.bytes / limits.weights_rate
        multiplying = self.multiply_adds / limits.multiply_rate
        return Floor(max(reading, multiplying), "memory" if reading > multiplying else "compute")


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """The matrices of one layer's experts.

    Attributes:
        count: number of experts.
        used: experts that compute each token.
        bytes: bytes of the matrices of all experts.
    """

    count: int
    used: int
    bytes: int

    def read(self, tokens: int) -> float:
        """Bytes that a step of so many tokens reads, where every choice of experts is as likely.

        A token misses an expert with probability 1 - used / count.
        """
        return self.bytes * (1 - (1 - self.used / self.count) ** tokens)


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The work of a model's steps, on any machine.

    Attributes:
        weight_bytes: bytes of all matrices in memory. A step reads them once, except experts that
            none of its tokens uses. An embedding table counts if it is also the output matrix.
        token_multiply_adds: multiply-adds for each token of a step.
        row_multiply_adds: further multiply-adds for each token whose logits are computed.
        kv_layers: for each layer with attention, its window (0: none) and the bytes of the keys and
            values of one position.
        expert_layers: experts of each layer that has them.
        state_bytes: bytes of the fixed-size state of one sequence.
    """

    weight_bytes: int
    token_multiply_adds: int
    row_multiply_adds: int
    kv_layers: tuple[tuple[int, float], ...]
    expert_layers: tuple[ExpertWork, ...] = ()
    state_bytes: int = 0

    @property
    def score_cost(self) -> float:
        """Cost of a token's logits, as a fraction of the cost of computing the token."""
        return self.row_multiply_adds / max(1, self.token_multiply_adds)

    def kv_bytes(self, depth: int) -> int:
        """Bytes of keys and values that a token with `depth` positions before it reads."""
        return round(
            sum((min(depth, window) if window else depth) * size for window, size in self.kv_layers)
        )

    def read_bytes(self, tokens: int) -> int:
        """Bytes of matrices that a step of so many tokens reads; see :meth:`ExpertWork.read`."""
        idle = sum(layer.bytes - layer.read(tokens) for layer in self.expert_layers)
        return self.weight_bytes - round(idle)

    def decode_step(self, streams: int, depth: int) -> Work:
        """A step that generates one token for each stream. Each stream has `depth` tokens."""
        tokens = self.token_multiply_adds + self.row_multiply_adds
        of_stream = self.kv_bytes(depth) + 2 * self.state_bytes  # a state is read and written
        return Work(self.read_bytes(streams) + streams * of_stream, streams * tokens)

    def prompts(self, streams: int, tokens: int, batch_tokens: int) -> Work:
        """Prefill of `streams` prompts of `tokens` tokens each, in steps of `batch_tokens`."""
        whole, rest = divmod(streams * tokens, batch_tokens)
        bytes = whole * self.read_bytes(batch_tokens) + (self.read_bytes(rest) if rest else 0)
        multiply_adds = tokens * self.token_multiply_adds + self.row_multiply_adds
        return Work(bytes, streams * multiply_adds)
