"""A package that brings one of each: a family, a quantisation, a call form, a drafter, a logits
processor, a format of answers, an API, a device, a command, a setting,
a parameter of requests.

Its entry point is `sample = heddle_sample:EXTENSION`, in the group `heddle`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from fastapi import APIRouter

from heddle.config import EngineSettings
from heddle.doors import Device, Extension
from heddle.executors.cpu.load import load as load_on_processor
from heddle.grammars import Grammar
from heddle.models.families.qwen3 import build
from heddle.models.family import Family
from heddle.parameters import ExtensionParams, Integer, parameter
from heddle.server.generate.api import Api
from heddle.server.generate.constraint_field import AnswerFormat
from heddle.settings import setting
from heddle.text.chat.call_forms import Hermes
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

EXTENSION = Extension(
    settings=("heddle_sample:SampleSettings",),
    parameters=("heddle_sample:SampleParams",),
    families=("heddle_sample:FAMILY",),
    quantisations={"unchanged": "heddle_sample:quantised_matrices"},
    call_forms=("heddle_sample:form_of",),
    devices={"twin": Device("heddle_sample:load_on_twin")},
    apis=("heddle_sample:API",),
    commands={"greet": "heddle_sample:greet"},
    drafters={"again": "heddle_sample:Again"},
    logits_processors={"only": "heddle_sample:Only"},
    formats={"sample": "heddle_sample:FORMAT"},
)
FAMILY = Family(  # layers are Qwen3's, under names of their own
    build=build,
    gguf={"sample": GGUFNames(layer={"mlp_norm": "feed_norm"})},
    hf={"sample": FolderNames(layer={"mlp_norm": "norm_before_feed_forward"})},
)


def quantised_matrices(settings, tensors, read):
    """A method that changes no matrix."""
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings(EngineSettings):
    """Settings of this package."""

    sample_note: str = setting("none", "model", "note of the package", choices=("none", "some"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleParams(ExtensionParams):
    """Parameters of requests of this package."""

    sample_pitch: int = parameter(0, Integer(0, 9), "Without effect.")


class Shouted(Hermes):
    """Calls between `<CALL>` and `</CALL>`."""

    marks = ("<CALL>", "</CALL>")


def form_of(template):
    return Shouted() if "<CALL>" in template else None


def load_on_twin(checkpoint, config, progress=lambda loaded: None):
    """A device that is the processor under another name."""
    return load_on_processor(checkpoint, config, progress)


class Again:
    """Guesses that the last token comes again."""

    def __init__(self, sequence):
        self.last = 0

    def append(self, tokens):
        self.last = tokens[-1] if tokens else self.last

    def guess(self, most):
        return [self.last] * most, 0


class Only:
    """Allows a single token."""

    def __init__(self, options, tokenizer):
        self.bias = np.full(tokenizer.vocabulary_size, -np.inf, np.float32)
        self.bias[options["token"]] = 0

    def begin(self, prompt):
        return self

    def next_bias(self, tokens):
        return self.bias

    def rewind(self, count):
        return True


FORMAT = AnswerFormat(
    {"words": list[str]},
    lambda form, field: Grammar.lark("start: " + " ".join(map(json.dumps, form["words"])), field),
)


def _routes(service, dispatcher):
    router = APIRouter()

    @router.get("/sample")
    def sample() -> dict[str, list[str]]:
        config = service.registry.engine_config
        return {"models": list(service.names), "note": [config.of(SampleSettings).sample_note]}

    return [router]


API = Api(_routes)


def greet(name: str) -> None:
    """Greet somebody."""
    print(f"hello {name}")
