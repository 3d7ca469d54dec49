"""KL divergence between next-token distributions, from logits."""

from __future__ import annotations

import numpy as np

_ROWS = 64  # at a time, so that float64 copies stay small


def divergences(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference || other) in nats for each row of two (T, vocabulary) arrays: (T,) float64."""
    parts = []
    for start in range(0, len(reference), _ROWS):
        p, q = (_log_softmax(x[start : start + _ROWS]) for x in (reference, other))
        parts.append((np.exp(p) * (p - q)).sum(axis=-1))
    return np.concatenate(parts)


def mean_kl(reference: np.ndarray, other: np.ndarray) -> float:
    """Mean of :func:`divergences` over positions."""
    return float(divergences(reference, other).mean())


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
