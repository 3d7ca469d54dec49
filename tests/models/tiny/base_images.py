"""The common part of tiny models that see images: their text model is one part of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from models.tiny.base import TinyModel

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class TinySeeing(TinyModel):
    """The text model has the architecture `architecture`, the whole model `whole`."""

    whole: ClassVar[str]
    """The value of `model_type` at the top of config.json."""
    eyes: ClassVar[str] = "model.visual."
    """How names of the part that reads images begin. The files have no such tensors."""
    vision: ClassVar[dict[str, object]]
    """The sizes of that part, which `transformers` fills at random."""

    @property
    def text_config(self) -> dict[str, object]:
        """The content of `text_config`."""
        return super().config() | {"pad_token_id": None}

    def config(self) -> dict[str, object]:
        return {
            "model_type": self.whole,
            "text_config": self.text_config,
            "vision_config": self.vision,
            "tie_word_embeddings": self.tied,
        }

    def sections(self, *of_16: int) -> list[int]:
        """Pairs of each axis, from those of a head of 16 elements."""
        return [one * self.head_dim // 16 for one in of_16]

    def changed(self, changes: Mapping[str, object]) -> dict[str, object]:
        return self.config() | {"text_config": self.text_config | dict(changes)}

    def folder_name(self, name: str) -> str:
        return name.replace("model.", "model.language_model.", 1)
