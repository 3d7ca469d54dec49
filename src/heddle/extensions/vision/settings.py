"""Settings of pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from heddle.config import EngineSettings, ServerSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EyesSettings(EngineSettings):
    """Where the eyes of a model are."""

    mmproj: str = setting(
        "auto",
        "model",
        "file with the eyes of a GGUF model; auto = the one beside the model; none = it sees no"
        " pictures",
        fixed=True,
        changes_answers=True,
    )

    image_tokens: int = setting(
        2048,
        "model",
        "most tokens of one picture, for models whose pictures keep their shape; larger ones are"
        " made smaller",
        low=16,
        high=16384,
        changes_answers=True,
    )
    image_cache: int = setting(
        256 * 1024**2,
        "memory",
        "memory for pictures that a model has seen, so that other requests find them; beyond it"
        " those that were used least recently are put out",
        size=True,
    )

    def beside_default(self, default: EyesSettings) -> EyesSettings:
        """The settings of another model, which a file for the default model does not fit."""
        named = self.mmproj == default.mmproj not in ("auto", "none")
        return replace(self, mmproj="auto") if named else self

    def for_draft_model(self) -> EyesSettings:
        """The settings of a small model, which guesses from text alone."""
        return replace(self, mmproj="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings(ServerSettings):
    """Where pictures of requests may come from."""

    allow_image_urls: bool = setting(
        False,
        "requests",
        "fetch pictures from http and https addresses in requests, of public hosts only; by default"
        " requests must hold their pictures",
        fixed=True,
    )
