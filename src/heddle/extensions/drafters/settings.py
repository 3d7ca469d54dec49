"""Settings of the draft model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from heddle.config import EngineSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings(EngineSettings):
    """Settings of the small model that guesses for a model."""

    draft: str = setting(
        "",
        "speculation",
        "small model with the same vocabulary that guesses tokens for the model; empty = none",
    )
    draft_required: bool = setting(
        True,
        "speculation",
        "whether a model whose vocabulary differs from the draft model's is refused; off = it runs"
        " without these guesses, as models beside the default one always do",
    )

    def beside_default(self, default: DrafterSettings) -> DrafterSettings:
        """The settings of another model: a draft model for all need fit only the default model."""
        return replace(self, draft_required=False) if self.draft == default.draft else self

    def for_draft_model(self) -> DrafterSettings:
        """The settings of the small model, for which no other model guesses."""
        return replace(self, draft="")
