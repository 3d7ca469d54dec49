"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values.

Yang et al. 2024 (arXiv:2407.10671). Unlike Llama's, the files keep the rows of q and k in the
order of Hugging Face's, so that the rotation pairs the halves of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models import llama

if TYPE_CHECKING:
    from collections.abc import Mapping


def build(metadata: Mapping[str, object]) -> llama.Llama:
    """Read the hyperparameters; see :func:`heddle.models.llama.read`."""
    return llama.read(metadata, "qwen2", interleaved=False)
