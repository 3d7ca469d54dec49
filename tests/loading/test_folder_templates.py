"""Where folders have their chat template: the processor's file comes before the tokenizer's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from heddle.weights.huggingface.checkpoint import chat_template_of

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "chat_template.jinja": "jinja",
    "chat_template.json": json.dumps({"chat_template": "processor"}),
    "tokenizer_config.json": json.dumps({"chat_template": "tokenizer"}),
}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (list(FILES), "jinja"),
        (["chat_template.json", "tokenizer_config.json"], "processor"),
        (["tokenizer_config.json"], "tokenizer"),
        ([], None),
    ],
)
def test_the_first_file_with_a_template_counts(
    tmp_path: Path, names: list[str], expected: str | None
) -> None:
    for name in names:
        (tmp_path / name).write_text(FILES[name])
    assert chat_template_of(tmp_path) == expected
