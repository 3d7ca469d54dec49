"""Tokenizer and chat template from a folder, for a GGUF file that lacks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.weights.huggingface.checkpoint import CONFIG, chat_template_of
from heddle.weights.huggingface.json_files import read_optional_json
from heddle.weights.huggingface.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.weights.checkpoint import TokenizerSpec


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """A folder of the model that a GGUF file was made from. It needs no weights."""

    path: Path

    def chat_template(self) -> str | None:
        """The chat template; None without one. Raises ModelFileError: its file is damaged."""
        return chat_template_of(self.path)

    def tokenizer(self, vocabulary: object) -> TokenizerSpec:
        """The tokenizer, for a model of `vocabulary` tokens. Raises as :func:`read_tokenizer`."""
        config = read_optional_json(self.path / CONFIG)
        return read_tokenizer(self.path, config | {"vocab_size": vocabulary})
