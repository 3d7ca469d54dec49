"""Heddle: an LLM inference engine in Python with a native core. These are its public names.

`Engine` and `LLM` are imported when first used, so that `import heddle` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.config import EngineConfig
from heddle.errors import (
    ChecksumError,
    ConfigError,
    ContextLengthError,
    EngineClosedError,
    EngineFailedError,
    HeddleError,
    InvalidRequestError,
    ModelFileError,
    ModelNotFoundError,
    ModelSourceError,
    OverloadedError,
    UnsupportedModelError,
    UnsupportedParameterError,
)
from heddle.types import Delta, FinishReason, Output, SamplingParams, TokenLogprob, Usage

if TYPE_CHECKING:
    from heddle.engine.engine import Engine
    from heddle.engine.llm import LLM

__all__ = [
    "LLM",
    "ChecksumError",
    "ConfigError",
    "ContextLengthError",
    "Delta",
    "Engine",
    "EngineClosedError",
    "EngineConfig",
    "EngineFailedError",
    "FinishReason",
    "HeddleError",
    "InvalidRequestError",
    "ModelFileError",
    "ModelNotFoundError",
    "ModelSourceError",
    "Output",
    "OverloadedError",
    "SamplingParams",
    "TokenLogprob",
    "UnsupportedModelError",
    "UnsupportedParameterError",
    "Usage",
]


def __getattr__(name: str) -> object:
    if name == "Engine":
        from heddle.engine.engine import Engine

        return Engine
    if name == "LLM":
        from heddle.engine.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
