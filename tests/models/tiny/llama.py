"""Tiny models of Llama: a plain one and one for each scaling of positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gguf_writer import Tensor
from models.tiny.base import BASE, ORIGINAL_CONTEXT, SCALE, TinyModel

LLAMA3_DIVISORS = [1.0, 1.293976, 7.667385, 7.999999, 8.0, 7.999999, 8.0, 7.999999]
"""What `transformers` divides the frequencies of each pair by, with the scaling of `config`."""


@dataclass(frozen=True)
class TinyLlama(TinyModel):
    """`scaling` is how frequencies are scaled for long contexts: "", llama3, yarn or longrope."""

    architecture = "llama"
    interleaves = True

    scaling: str = ""

    def metadata(self) -> dict[str, object]:
        if self.scaling not in ("yarn", "longrope"):  # GGUF has Llama 3's only as a tensor
            return super().metadata()
        return super().metadata() | {
            "llama.rope.scaling.type": self.scaling,
            "llama.rope.scaling.factor": SCALE,
            "llama.rope.scaling.original_context_length": ORIGINAL_CONTEXT,
        }

    def tensors(self) -> list[Tensor]:
        divisors = {
            "llama3": {"rope_freqs": LLAMA3_DIVISORS},
            "longrope": {f"rope_factors_{kind}": of for kind, of in self.divisors().items()},
        }.get(self.scaling, {})
        more = [Tensor.of(f"{name}.weight", np.float32(of)) for name, of in divisors.items()]
        return [*super().tensors(), *more]

    def config(self) -> dict[str, object]:
        rope: dict[str, object] = {"rope_theta": BASE, "rope_type": self.scaling or "default"}
        if self.scaling:
            rope |= {"factor": SCALE, "original_max_position_embeddings": ORIGINAL_CONTEXT}
        if self.scaling == "llama3":  # so that the factors range from 1 to 8 over a head's pairs
            rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
            rope["original_max_position_embeddings"] = 64
        if self.scaling == "longrope":
            rope |= {f"{length}_factor": values for length, values in self.divisors().items()}
        return super().config() | {"rope_parameters": rope}

    def divisors(self) -> dict[str, list[float]]:
        """Longrope's divisors of each pair's frequency, for short and for long sequences."""
        pairs = self.head_dim // 2
        return {
            "short": [1 + 0.0625 * pair for pair in range(pairs)],
            "long": [1 + 0.75 * pair for pair in range(pairs)],
        }


PLAIN = TinyLlama("plain", heads=4, kv_heads=2, head_dim=16, tied=True)
MODELS = (
    PLAIN,
    TinyLlama("scaled", heads=8, kv_heads=2, head_dim=16, tied=False, scaling="llama3"),
    TinyLlama("yarn", heads=4, kv_heads=2, head_dim=16, tied=True, scaling="yarn"),
    TinyLlama("longrope", heads=4, kv_heads=2, head_dim=16, tied=True, scaling="longrope"),
)
