"""Heddle: an LLM inference engine in Python with a native core. This module has its public names.

The names are imported when first used. So `import heddle` costs almost nothing, and the command can
handle interrupts before it imports anything (`__main__.py`).
"""

from __future__ import annotations

TYPE_CHECKING = False  # replaces typing's, because importing typing takes milliseconds

if TYPE_CHECKING:
    from heddle.config import EngineConfig, RegistryConfig
    from heddle.embedding import Embedding, EmbeddingParams, Pooling
    from heddle.engine.driven import DrivenSequence, SampledToken, SequenceSnapshot
    from heddle.engine.engine import Engine
    from heddle.engine.llm import LLM
    from heddle.errors import (
        ChecksumError,
        ConfigError,
        ContextLengthError,
        EngineClosedError,
        EngineFailedError,
        EventLoopError,
        GrammarError,
        HeddleError,
        InvalidRequestError,
        ModelFileError,
        ModelLoadedError,
        ModelNotFoundError,
        ModelPoisonedError,
        ModelSourceError,
        ModelUnavailableError,
        OverloadedError,
        UnsupportedModelError,
        UnsupportedParameterError,
    )
    from heddle.grammars import Grammar
    from heddle.hosting.registry import Registry
    from heddle.outputs import Delta, FinishReason, Output, PromptLogprob, TokenLogprob, Usage
    from heddle.sampling_params import SamplingParams

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
    "EventLoopError",
    "FinishReason",
    "Grammar",
    "GrammarError",
    "HeddleError",
    "InvalidRequestError",
    "ModelFileError",
    "ModelLoadedError",
    "ModelNotFoundError",
    "ModelPoisonedError",
    "ModelSourceError",
    "ModelUnavailableError",
    "Output",
    "OverloadedError",
    "Pooling",
    "PromptLogprob",
    "Registry",
    "RegistryConfig",
    "SampledToken",
    "SamplingParams",
    "SequenceSnapshot",
    "TokenLogprob",
    "UnsupportedModelError",
    "UnsupportedParameterError",
    "Usage",
]


_MODULES = {
    "config": ("EngineConfig", "RegistryConfig"),
    "embedding": ("Embedding", "EmbeddingParams", "Pooling"),
    "engine.driven": ("DrivenSequence", "SampledToken", "SequenceSnapshot"),
    "engine.engine": ("Engine",),
    "engine.llm": ("LLM",),
    "hosting.registry": ("Registry",),
    "errors": (
        "ChecksumError",
        "ConfigError",
        "ContextLengthError",
        "EngineClosedError",
        "EngineFailedError",
        "EventLoopError",
        "GrammarError",
        "HeddleError",
        "InvalidRequestError",
        "ModelFileError",
        "ModelLoadedError",
        "ModelNotFoundError",
        "ModelPoisonedError",
        "ModelSourceError",
        "ModelUnavailableError",
        "OverloadedError",
        "UnsupportedModelError",
        "UnsupportedParameterError",
    ),
    "grammars": ("Grammar",),
    "outputs": ("Delta", "FinishReason", "Output", "PromptLogprob", "TokenLogprob", "Usage"),
    "sampling_params": ("SamplingParams",),
}
"""The names that each module defines."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        from importlib import import_module

        return getattr(import_module(f"heddle.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
