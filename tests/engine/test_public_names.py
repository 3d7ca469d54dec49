"""`import heddle`: its names, and the modules that it loads."""

import subprocess
import sys

import heddle

NAMES = [
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


def test_the_public_names_are_unchanged() -> None:
    assert sorted(heddle.__all__) == sorted(NAMES)
    assert sorted(dir(heddle)) == sorted(NAMES)
    assert all(getattr(heddle, name).__name__ == name for name in NAMES)
    assert not hasattr(heddle, "Motor")


def test_importing_alone_loads_no_other_module() -> None:
    """The command can then handle interrupts before its slow imports."""
    code = "import sys, heddle; print([m for m in sys.modules if m.startswith('heddle.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_loads_nothing_heavy_until_a_model_is_loaded() -> None:
    code = (
        "import sys, heddle; heddle.Engine; heddle.LLM;"
        "print([m for m in ('numpy', 'jinja2', 'tokenizers', 'fastapi', 'heddle._native')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
