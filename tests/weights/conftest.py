"""A hub of the tests, and the files of a folder for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from fake_hub import FakeHub, fake_hub
from heddle.weights.hub import transfer
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a folder with safetensors, and others that no model needs."""
    path = PLAIN.write_folder(tmp_path_factory.mktemp("folder") / "model")
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    others = ("pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx", "vocab.txt")
    return files | dict.fromkeys(others, b"not needed")


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    with fake_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    """An empty hub, and no pauses between attempts."""
    fresh = FakeHub(server.url)
    vars(server).update(vars(fresh))
    monkeypatch.setattr(transfer, "_PAUSES", (0.0,) * 5)
    assert constants.HF_HUB_DISABLE_TELEMETRY  # else the library asks huggingface.co for a list
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return server
