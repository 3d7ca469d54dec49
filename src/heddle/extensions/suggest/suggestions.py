"""Models worth trying, by the memory that they need: the table of README and `heddle suggest`."""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_SPEED = 5
"""Tokens per second that the memory of a machine must allow for a model to be suggested: about the
pace of a reader."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model to try.

    Attributes:
        memory: GB of free memory for `file`, `cache`, and at least 0.2 GB beside them.
        name: the name to type.
        file: GB to fetch: the size of the file on the hub.
        read: GB of weights that a token reads: the file without an embedding table that is not the
            output matrix too, and without the experts that the token does not use.
        cache: GB of keys and values of 8,192 tokens in f16, from the layers and heads of the model.
        architecture: GGUF's name of its architecture.
        note: uses that the model is good for.
    """

    memory: float
    name: str
    file: float
    read: float
    cache: float
    architecture: str
    note: str

    def speed(self, rate: float) -> str:
        """Most tokens per second of one conversation if `rate` bytes per second are read."""
        tokens = rate / (self.read * 1e9)
        return f"{tokens:.0f}" if tokens >= 10 else f"{tokens:.1f}"


SUGGESTIONS = (
    Suggestion(0.5, "smollm2-135m", 0.1, 0.1, 0.19, "llama", "the default; only to try Heddle"),
    Suggestion(
        2, "Qwen/Qwen3-0.6B-GGUF:Q8_0", 0.6, 0.6, 0.94, "qwen3", "short and simple questions"
    ),
    Suggestion(2.5, "qwen2.5-coder-1.5b", 1.1, 1.1, 0.23, "qwen2", "code; from the package index"),
    Suggestion(4, "Qwen/Qwen3-1.7B-GGUF:Q8_0", 1.8, 1.8, 0.94, "qwen3", "chats, summaries"),
    Suggestion(5, "Qwen/Qwen3-4B-GGUF:Q4_K_M", 2.5, 2.5, 1.21, "qwen3", "chats, tools, reasoning"),
    Suggestion(8, "Qwen/Qwen3-8B-GGUF:Q4_K_M", 5.0, 4.7, 1.21, "qwen3", "the same, better"),
    Suggestion(13, "Qwen/Qwen3-14B-GGUF:Q4_K_M", 9.0, 8.6, 1.34, "qwen3", "the same, still better"),
    Suggestion(
        *(22, "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", 18.6, 2.0, 0.81, "qwen3moe"),
        note="the same, as fast as a 4B",
    ),
)
"""Ordered by memory."""


def best_for(available: int, rate: float, *, offline: bool = False) -> Suggestion:
    """The best model for a machine.

    Args:
        available: bytes that the process may use.
        rate: bytes that it reads from memory per second.
        offline: whether only models from the package index count.
    """
    fitting = [
        one
        for one in SUGGESTIONS
        if one.memory * 1e9 <= available
        and rate >= _LEAST_SPEED * one.read * 1e9
        and not (offline and "/" in one.name)
    ]
    return fitting[-1] if fitting else SUGGESTIONS[0]


def rows() -> list[tuple[str, str, str, str]]:
    """The table: memory, name, size of the files, note."""
    return [(f"{one.memory:g} GB", one.name, f"{one.file:g} GB", one.note) for one in SUGGESTIONS]
