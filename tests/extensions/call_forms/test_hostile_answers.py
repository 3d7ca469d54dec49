"""Answers of pieces of transcripts and marks in any order: no form loses or invents anything."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from heddle.text.chat.template import ChatTemplate
from heddle.text.parsing.parts import parsed_answer

FORMS: dict[str, Any] = {
    path.stem: tomllib.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "transcripts").glob("*.toml"))
}
SCHEMAS: dict[str, Any] = {"edit": {"properties": {"text": {"type": "string"}}}, "clock": {}}
TEXTS = 40


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(FORMS[name]["template"], "", "")


def hostile(name: str) -> list[str]:
    """Texts that begin calls and do not end them, end what has not begun, and cut marks."""
    chance = random.Random(name)
    pieces = [said["text"] for said in FORMS[name]["said"]]
    pieces += [
        *template_of(name).dialect.form.marks,
        "edit",
        "new",
        '"',
        "{",
        "}",
        "[1",
        "\n",
        " a",
    ]

    def piece() -> str:
        text: str = chance.choice(pieces)
        begin, end = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        return text if chance.random() < 0.7 else text[begin:end]

    return ["".join(piece() for _ in range(chance.randrange(1, 7))) for _ in range(TEXTS)]


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_a_hostile_answer_is_read_in_pieces_as_it_is_read_whole(name: str, cut: bool) -> None:
    dialect = template_of(name).dialect
    for functions in (SCHEMAS, None):
        reading = dialect.reading("", functions)
        for text in hostile(name):
            reader = reading.reader()
            parts = [part for char in text for part in reader.feed(char)]
            answer = parsed_answer(parts + reader.finish(cut=cut))
            assert reading.read(text, cut=cut) == answer, text
            assert functions or not answer.calls, text


@pytest.mark.parametrize("name", FORMS)
def test_text_without_marks_stays_as_it_is(name: str) -> None:
    reading = template_of(name).dialect.reading("", SCHEMAS)
    for text in ("Well, 1 < 2 & [x] {y}: <b>", 'call edit("a") now', "</tool> <arg"):
        assert reading.read(text).text == text
        assert reading.read(text).calls == ()
