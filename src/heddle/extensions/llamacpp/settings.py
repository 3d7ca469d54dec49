"""Settings of llama.cpp's API."""

from dataclasses import dataclass

from heddle.config import ServerSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings(ServerSettings):
    """Settings of llama.cpp's routes."""

    slot_save_path: str = setting(
        "",
        "memory",
        "directory for the files of POST /slots/{id}?action=save and restore; empty = 501",
    )
