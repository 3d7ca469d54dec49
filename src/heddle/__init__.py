"""Heddle: an LLM inference engine in Python with a native core. These are its public names.

Those of the engine are imported when first used, so that `import heddle` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from heddle.config import EngineConfig
from heddle.embedding import Embedding, EmbeddingParams, Pooling
from heddle.errors import (
    ChecksumError,
    ConfigError,
    ContextLengthError,
    EngineClosedError,
    EngineFailedError,
    GrammarError,
    HeddleError,
    InvalidRequestError,
    ModelFileError,
    ModelNotFoundError,
    ModelSourceError,
    OverloadedError,
    UnsupportedModelError,
    UnsupportedParameterError,
)
from heddle.types import (
    Delta,
    FinishReason,
    Grammar,
    Output,
    PromptLogprob,
    SamplingParams,
    TokenLogprob,
    Usage,
)

if TYPE_CHECKING:
    from heddle.engine.driven import DrivenSequence, SampledToken, SequenceSnapshot
    from heddle.engine.engine import Engine
    from heddle.engine.llm import LLM

__all__ = [
    "LLM",
    "ChecksumError",
    "ConfigError",
    "ContextLengthError",
    "Delta",
    "DrivenSequence",
    "Embedding",
    "EmbeddingParams",
    "Engine",
    "EngineClosedError",
    "EngineConfig",
    "EngineFailedError",
    "FinishReason",
    "Grammar",
    "GrammarError",
    "HeddleError",
    "InvalidRequestError",
    "ModelFileError",
    "ModelNotFoundError",
    "ModelSourceError",
    "Output",
    "OverloadedError",
    "Pooling",
    "PromptLogprob",
    "SampledToken",
    "SamplingParams",
    "SequenceSnapshot",
    "TokenLogprob",
    "UnsupportedModelError",
    "UnsupportedParameterError",
    "Usage",
]


_LATE = {
    "DrivenSequence": "driven",
    "Engine": "engine",
    "LLM": "llm",
    "SampledToken": "driven",
    "SequenceSnapshot": "driven",
}
"""Names that are imported when first used, and their modules in `heddle.engine`."""


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(import_module(f"heddle.engine.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
