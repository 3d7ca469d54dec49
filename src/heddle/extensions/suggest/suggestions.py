"""Models worth trying, by the memory that they need: the tables of `heddle suggest`.

README has the first one, of models for chats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST_SPEED = 5
"""Tokens per second that the memory of a machine must allow for a model to be suggested: about the
pace of a reader."""
_LEAST_QUERIES = 10
"""Queries per second that the memory must allow for a model of embeddings to be suggested: a search
then takes a tenth of a second, which its user does not feel as a wait."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model to try.

    Attributes:
        memory: GB of free memory for `file`, `cache`, and at least 0.2 GB beside them.
        name: the name to type.
        file: GB to fetch: the size of the file on the hub.
        read: GB of weights that a token reads: the file without an embedding table that is not the
            output matrix too, and without the experts that the token does not use.
        cache: GB of keys and values of 8,192 tokens in f16, from the layers and heads of the model;
            of its context, if that is shorter.
        architecture: the name of its architecture in GGUF; of a folder, its `model_type`.
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
        """Most steps per second if `rate` bytes per second are read.

        A step computes a token of one conversation, or the vector of a short text.
        """
        steps = rate / (self.read * 1e9)
        return f"{steps:.0f}" if steps >= 10 else f"{steps:.1f}"


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
"""For chats, ordered by memory."""

EMBEDDINGS = (
    Suggestion(
        *(0.5, "sentence-transformers/all-MiniLM-L6-v2", 0.1, 0.04, 0.01, "bert"),
        note="English, texts of a paragraph",
    ),
    Suggestion(
        *(0.5, "BAAI/bge-small-en-v1.5", 0.1, 0.09, 0.01, "bert"),
        note="English, questions and passages",
    ),
    Suggestion(
        *(0.5, "nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0", 0.1, 0.1, 0.08, "nomic-bert"),
        note="English, longer texts",
    ),
    Suggestion(
        *(1, "intfloat/multilingual-e5-small", 0.5, 0.09, 0.01, "bert"),
        note="100 languages, short texts",
    ),
    Suggestion(
        *(1, "ggml-org/embeddinggemma-300M-GGUF:Q8_0", 0.3, 0.1, 0.05, "gemma-embedding"),
        note="100 languages",
    ),
    Suggestion(
        *(2, "gpustack/bge-m3-GGUF:Q8_0", 0.6, 0.3, 0.81, "bert"),
        note="100 languages, long texts",
    ),
    Suggestion(
        *(2, "Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0", 0.6, 0.5, 0.94, "qwen3"),
        note="100 languages, code, long texts",
    ),
    Suggestion(
        5, "Qwen/Qwen3-Embedding-4B-GGUF:Q4_K_M", 2.5, 2.2, 1.21, "qwen3", "the same, better"
    ),
    Suggestion(
        *(8, "Qwen/Qwen3-Embedding-8B-GGUF:Q4_K_M", 4.7, 4.3, 1.21, "qwen3"),
        note="the same, still better",
    ),
)
"""For vectors of texts, ordered by memory."""

RERANKERS = (
    Suggestion(
        *(0.5, "cross-encoder/ms-marco-MiniLM-L6-v2", 0.1, 0.04, 0.01, "bert"),
        note="reranking, English",
    ),
    Suggestion(
        *(2, "gpustack/bge-reranker-v2-m3-GGUF:Q8_0", 0.6, 0.3, 0.81, "bert"),
        note="reranking, 100 languages",
    ),
    Suggestion(
        *(3, "Qwen/Qwen3-Reranker-0.6B", 1.2, 0.9, 0.94, "qwen3"),
        note="the same, with instructions",
    ),
)
"""For ranking documents, ordered by memory."""


def best_for(available: int, rate: float) -> Suggestion:
    """The best model for a machine.

    Args:
        available: bytes that the process may use.
        rate: bytes that it reads from memory per second.
    """
    return [SUGGESTIONS[0], *_fitting(SUGGESTIONS, available, rate / _LEAST_SPEED)][-1]


def best_embeddings_for(available: int, rate: float) -> Suggestion:
    """The best model of embeddings for a machine; arguments as of :func:`best_for`."""
    return [EMBEDDINGS[0], *_fitting(EMBEDDINGS, available, rate / _LEAST_QUERIES)][-1]


def _fitting(suggestions: Sequence[Suggestion], available: int, read: float) -> list[Suggestion]:
    """Those that fit `available` bytes, and that read at most `read` bytes in a step."""
    return [one for one in suggestions if one.memory * 1e9 <= available and one.read * 1e9 <= read]


def rows(suggestions: Sequence[Suggestion] = SUGGESTIONS) -> list[tuple[str, str, str, str]]:
    """A table: memory, name, size of the files, note."""
    return [(f"{one.memory:g} GB", one.name, f"{one.file:g} GB", one.note) for one in suggestions]
