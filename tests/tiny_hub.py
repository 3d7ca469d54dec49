"""A small hub with one tiny model, `org/tiny`, and empty caches."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fake_hub import FakeHub, Repository, fake_hub
from gguf_writer import gguf_bytes
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [*(chr(ord("A") + i) for i in range(PLAIN.vocabulary - 1)), "AB"],
    "tokenizer.ggml.merges": ["A B"],
    "tokenizer.chat_template": "{{ messages[0].content }}",
}
TINY = gguf_bytes(PLAIN.metadata() | TOKENIZER, PLAIN.tensors())
"""The model's file. Its tokens are letters from A on."""


@contextmanager
def tiny_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub of this process until the end of the block. The caches are in `folder`."""
    monkeypatch.setenv("HEDDLE_HOME", str(folder / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repositories["org/tiny"] = Repository.of({"tiny-F32.gguf": TINY})
        yield hub
