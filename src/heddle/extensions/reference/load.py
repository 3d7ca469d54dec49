"""Loads a model for the device "reference"."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import ConfigError
from heddle.executors.serving import (
    check_pages,
    head_config,
    kept_kinds,
    load_of,
    served_config,
    served_head,
    served_shape,
)
from heddle.extensions.reference.executor import ReferenceExecutor
from heddle.extensions.reference.ops import ReferenceLoader
from heddle.extensions.reference.state_arrays import bytes_of_page
from heddle.models.build import build
from heddle.state import divide, without_last_layer
from heddle.weights.mix import AS_STORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig
    from heddle.weights.checkpoint import Checkpoint

_KV_CACHE = 1 << 30
"""Default bytes of KV pages."""


def load(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Callable[[int], None] = lambda loaded: None,
) -> ReferenceExecutor:
    """Dequantise all weights of `checkpoint`; see `heddle.executors.devices.Load`."""
    if config.quantize != AS_STORED:
        raise ConfigError(
            f"the reference computes with weights as stored, not with quantize {config.quantize!r};"
            " set quantize to none, or quantise the file with `heddle quantize`",
            param="quantize",
        )
    model = build(checkpoint, config.context)
    shape = served_shape(config, model.shape)
    config = served_config(config, shape)
    kinds = kept_kinds(model, config)
    head = served_head(model, kinds, config)
    if head is not None:
        kinds.append(head.state(0))
    budget = config.kv_cache or _KV_CACHE
    memory = divide(kinds, load_of(config, shape), budget, bytes_of_page)
    check_pages(memory, budget)
    loader = ReferenceLoader(checkpoint, allow_nonfinite=config.allow_nonfinite, progress=progress)
    weights = model.load(loader)
    size, guesser = loader.matmul_bytes, None
    if head is not None:
        memory, of_head = without_last_layer(memory, bytes_of_page)
        head_weights = head.load_beside(loader, weights)
        own = loader.matmul_bytes - size
        head_shape = replace(shape, layers=1)
        guesser = ReferenceExecutor(
            head, head_shape, head_weights, head_config(config), own, of_head
        )
    checkpoint.check_unchanged()
    return ReferenceExecutor(model, shape, weights, config, size, memory, guesser)
