"""Settings of engram tables."""

from dataclasses import dataclass

from heddle.config import EngineSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramSettings(EngineSettings):
    """Engram tables of a process, which all its models share."""

    engram: tuple[str, ...] = setting(
        (),
        "requests",
        "engram tables that requests may name, each NAME=PATH, separated by commas; repeatable",
        shared=True,
        changes_answers=True,
    )
    engram_alpha: float = setting(
        0.2,
        "requests",
        "strength of engram tables in requests without `engram_alpha`",
        low=0,
        high=100,
        shared=True,
        changes_answers=True,
    )
    engram_unchecked: bool = setting(
        False,
        "requests",
        "take engram tables of version 1, which do not say for which vocabulary they were built; by"
        " default they are refused",
        shared=True,
    )
