"""Models worth trying, by the memory that they need: the table of README and `heddle suggest`."""

from __future__ import annotations

from dataclasses import dataclass

_READ_BY_CORE = 1.3
"""GB of weights per core and token up to which a model is suggested. A core reads 5 GB/s or more
from memory, so an answer comes at 4 tokens/s or more."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model to try.

    Attributes:
        memory: GB of free memory for the weights, and for conversations of 8,192 tokens in all.
        name: what to type.
        file: GB to fetch.
        read: GB of weights that a token reads; a model with experts reads a part of them.
        architecture: GGUF's name of its architecture.
        note: what it is good for.
    """

    memory: float
    name: str
    file: float
    read: float
    architecture: str
    note: str


SUGGESTIONS = (
    Suggestion(0.5, "smollm2-135m", 0.1, 0.1, "llama", "the default; only to try Heddle"),
    Suggestion(2, "Qwen/Qwen3-0.6B-GGUF:Q8_0", 0.6, 0.6, "qwen3", "short and simple questions"),
    Suggestion(2.5, "qwen2.5-coder-1.5b", 1.1, 1.1, "qwen2", "code; from the package index"),
    Suggestion(4, "Qwen/Qwen3-1.7B-GGUF:Q8_0", 1.8, 1.8, "qwen3", "chats, summaries"),
    Suggestion(5, "Qwen/Qwen3-4B-GGUF:Q4_K_M", 2.5, 2.5, "qwen3", "chats, tools, reasoning"),
    Suggestion(8, "Qwen/Qwen3-8B-GGUF:Q4_K_M", 5.0, 5.0, "qwen3", "the same, better"),
    Suggestion(13, "Qwen/Qwen3-14B-GGUF:Q4_K_M", 9.0, 9.0, "qwen3", "the same, still better"),
    Suggestion(
        22, "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", 18.6, 2.0, "qwen3moe", "the same, as fast as a 4B"
    ),
)
"""Ordered by memory. The sizes are those of the files on the hub."""


def best_for(available: int, cores: int, *, offline: bool = False) -> Suggestion:
    """The best model for a machine.

    Args:
        available: bytes that the process may use.
        cores: processor cores that it may use.
        offline: whether only models from the package index count.
    """
    fitting = [
        one
        for one in SUGGESTIONS
        if one.memory * 1e9 <= available
        and one.read <= _READ_BY_CORE * cores
        and not (offline and "/" in one.name)
    ]
    return fitting[-1] if fitting else SUGGESTIONS[0]


def rows() -> list[tuple[str, str, str, str]]:
    """The table: memory, name, size of the files, note."""
    return [(f"{one.memory:g} GB", one.name, f"{one.file:g} GB", one.note) for one in SUGGESTIONS]
