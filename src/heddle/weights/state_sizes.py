"""Sizes of the state that a sequence needs, from hyperparameters that may be odd or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.hyperparameters import Hyperparameters

_KV_BLOCKS = {"f16": (1, 2), "q8_0": (32, 34), "q4": (32, 18)}
"""Elements that are stored together, and their bytes, by KV type. Latents have no q4."""


def known_count(hyperparameters: Hyperparameters, name: str) -> int | None:
    """A positive whole number; None if the file does not say."""
    value = hyperparameters.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def kv_bytes_per_token(hyperparameters: Hyperparameters) -> Mapping[str, int] | None:
    """Bytes of the keys and values of one token in all layers, or of its latents, by KV type."""
    rank = known_count(hyperparameters, "latent_rank")
    turned = known_count(hyperparameters, "rope.dim")
    if rank is not None:
        layers = known_count(hyperparameters, "layers")
        latents = _bytes_of_vectors([(1, rank + turned)] * layers if turned and layers else [])
        return latents and {kind: size for kind, size in latents.items() if kind != "q4"}
    heads, width = known_count(hyperparameters, "heads"), known_count(hyperparameters, "width")
    head_dim = width // heads if width and heads else None
    kv_heads = _by_layer(hyperparameters, "kv_heads", heads)
    keys = _by_layer(hyperparameters, "key_dim", head_dim)
    values = _by_layer(hyperparameters, "value_dim", None) or keys
    shared = known_count(hyperparameters, "shared_layers") or 0
    kept = list(zip(kv_heads, keys, values, strict=False))[: max(len(kv_heads) - shared, 0)]
    with_keys, recurrent = _layers(hyperparameters)
    if recurrent and not with_keys:
        return dict.fromkeys(_KV_BLOCKS, 0)
    kept = [one for layer, one in enumerate(kept) if layer in with_keys]
    return _bytes_of_vectors([(count, size) for count, *sizes in kept for size in sizes])


def _bytes_of_vectors(vectors: list[tuple[int, int]]) -> Mapping[str, int] | None:
    """Bytes of (number of vectors, elements of each) by KV type; None without vectors."""
    if not vectors:
        return None
    elements = sum(count * size for count, size in vectors)
    return {
        kind: elements // block * nbytes
        for kind, (block, nbytes) in _KV_BLOCKS.items()
        if not any(size % block for _, size in vectors)
    }


def _layers(hyperparameters: Hyperparameters) -> tuple[set[int], set[int]]:
    """The layers that keep keys and values, and those that keep the state of a recurrence."""
    parts = hyperparameters.get("layer_parts")
    if isinstance(parts, list):
        attention, recurrence = (
            {layer for layer, part in enumerate(parts) if part == kind}
            for kind in ("attention", "recurrence")
        )
        return attention, recurrence
    every = set(range(known_count(hyperparameters, "layers") or 0))
    if hyperparameters.get("recurrence_beside") is True:
        return every, every
    recurrent = _recurrent(hyperparameters)
    return every - recurrent, recurrent


def _recurrent(hyperparameters: Hyperparameters) -> set[int]:
    """The layers that have a recurrence in place of attention."""
    listed, layers = hyperparameters.get("recurrent_layers"), known_count(hyperparameters, "layers")
    if isinstance(listed, list):
        return {layer for layer, is_recurrent in enumerate(listed) if is_recurrent}
    period = known_count(hyperparameters, "attention_period")
    if period is None or layers is None or known_count(hyperparameters, "state.taps") is None:
        return set()
    return {layer for layer in range(layers) if (layer + 1) % period}


def state_bytes(hyperparameters: Hyperparameters) -> int:
    """Bytes of the fixed-size state of one sequence: inputs of convolutions, and matrices."""
    taps = known_count(hyperparameters, "state.taps") or 1
    heads = known_count(hyperparameters, "state.heads") or 0
    keys = known_count(hyperparameters, "state.key_dim") or 0
    inner = known_count(hyperparameters, "state.inner") or 0
    values = known_count(hyperparameters, "state.value_dim") or (inner // heads if heads else keys)
    groups = known_count(hyperparameters, "state.groups") or 0
    channels = 2 * groups * keys + heads * values
    if not heads:
        channels = known_count(hyperparameters, "width") or 0
    elements = (taps - 1) * channels + heads * keys * values
    return 4 * elements * len(_layers(hyperparameters)[1])


def _by_layer(hyperparameters: Hyperparameters, name: str, default: int | None) -> list[int]:
    """A number for each layer; empty if the file does not say."""
    layers, given = known_count(hyperparameters, "layers"), hyperparameters.get(name)
    if layers is None:
        return []
    if isinstance(given, list):
        found = [one for one in given if type(one) is int and one >= 0]
        return found if len(found) == len(given) == layers else []
    one = known_count(hyperparameters, name) or default
    return [one] * layers if one else []
