"""Pictures in programs: `LLM.chat` and `heddle chat`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from image_files import CAT, gradient
from PIL import Image

from fake_executor import FakeExecutor
from fake_eyes import FakeEyes
from fake_model import fake_model
from fake_server import AnyTextTokenizer
from heddle import LLM, Engine, EngineConfig, SamplingParams
from heddle.cli.chat import Conversation, _run_line
from heddle.errors import BlindModelError, InvalidRequestError
from heddle.pictures import Picture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARAMS = SamplingParams(seed=1, max_tokens=2)


def engine_that_sees(*, sees: bool = True) -> Engine:
    model = replace(fake_model(FakeExecutor()), tokenizer=(tokenizer := AnyTextTokenizer()))
    model = replace(model, eyes=FakeEyes(tokenizer)) if sees else model
    return Engine(model, EngineConfig(speculation="off"))


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_that_sees() as engine:
        yield engine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "cat.png").write_bytes(CAT)
    return tmp_path / "cat.png"


def eyes_of(engine: Engine) -> FakeEyes:
    assert isinstance(engine.model.eyes, FakeEyes)
    return engine.model.eyes


def asked(image: object) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "what"}]
    return [{"role": "user", "content": parts}]


def test_a_program_gives_images_bytes_and_paths(engine: Engine, file: Path) -> None:
    pixels = np.asarray(gradient())
    for image in (gradient(), CAT, file, str(file), Picture.of(pixels.copy())):
        output = LLM(engine).chat(asked(image), PARAMS)
        assert output.usage.prompt_tokens == len("user- what.") + 4
    assert eyes_of(engine).texts == ["user- <pad>what."] * 5
    assert {one.digest for one in eyes_of(engine).seen} == {Picture.of(pixels.copy()).digest}


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (3, "got int"),
        ("no/such.png", "No such file"),
        (b"hello", "is no picture"),
        (Image.new("RGB", (0, 3)), "0 x 3"),
    ],
)
def test_what_is_no_image(engine: Engine, image: object, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as error:
        LLM(engine).chat(asked(image))
    assert error.value.param == "messages[0].content[0].image"


def test_a_model_without_eyes_refuses_before_it_reads() -> None:
    with engine_that_sees(sees=False) as engine, pytest.raises(BlindModelError):
        LLM(engine).chat(asked("no/such.png"))


def test_a_conversation_shows_a_picture_with_the_next_message(
    engine: Engine, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(engine, PARAMS, None)
    for line in (f"/image {file}", f"/image {file}", "what", "more"):
        assert _run_line(conversation, line)
    first, second = eyes_of(engine).texts
    assert first == "user- <pad><pad>what."
    assert second.startswith(first)
    assert second.endswith("user- more.")
    conversation.show(str(file))
    conversation.reset()
    _run_line(conversation, "again")
    assert len(eyes_of(engine).texts) == 2
    capsys.readouterr()


def test_a_conversation_goes_on_after_a_file_without_picture(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(engine, PARAMS, None)
    assert _run_line(conversation, f"/image {tmp_path / 'no.png'}")
    assert "cannot be read" in capsys.readouterr().err
    with engine_that_sees(sees=False) as blind:
        assert _run_line(Conversation(blind, PARAMS, None), "/image x.png")
    assert "sees no pictures" in capsys.readouterr().err
