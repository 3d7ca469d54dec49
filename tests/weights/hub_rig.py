"""Files of a tiny model, and what is found of it on a hub of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gguf_writer import gguf_bytes
from heddle.hub_place import HubPlace
from heddle.weights.sources import Found, find
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

    from fake_hub import FakeHub

TOKENS = [chr(ord("A") + i) for i in range(PLAIN.vocabulary)]
COMPLETE = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": ["A B"],
    "tokenizer.chat_template": "{{ messages }}",
}


def gguf(**metadata: object) -> bytes:
    named = {name.replace("__", "."): value for name, value in metadata.items()}
    return gguf_bytes(PLAIN.metadata() | COMPLETE | named, PLAIN.tensors())


WHOLE = gguf()
BARE = gguf_bytes(PLAIN.metadata(), PLAIN.tensors())


class Notes:
    """Keeps what progress is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.updates: list[int] = []
        self.total: int | None = None

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, label: str, total: int | None, *, quick: bool = False) -> None:
        self.total = total

    def update(self, done: int) -> None:
        self.updates.append(done)

    def part(self, name: str, done: int, total: int) -> None:
        assert 0 <= done <= total

    def finish(self) -> None:
        pass


def place(hub: FakeHub, tmp_path: Path, *, offline: bool = False) -> HubPlace:
    return HubPlace(tmp_path / "hub", hub.url, offline)


def found(
    hub: FakeHub, tmp_path: Path, model: str, notes: Notes | None = None, **more: Any
) -> Found:
    return find(model, tmp_path / "home", notes, place=place(hub, tmp_path, **more))


def kept(tmp_path: Path) -> list[Path]:
    """Files of the cache, but for locks."""
    return [path for path in (tmp_path / "hub").glob("models*/**/*") if not path.is_dir()]
