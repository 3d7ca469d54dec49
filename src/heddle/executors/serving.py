"""Applies settings to a model's sizes and state, the same for every device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import ConfigError
from heddle.state import PAGE_TOKENS, Load, Pages, Window
from heddle.step import HEAD_TOKENS, HEAD_TOKENS_OF_SLOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.config import EngineConfig
    from heddle.executor import ModelShape
    from heddle.models.decoder import Decoder, PredictionHead
    from heddle.state import KvShape, StateKind, StateMemory
    from heddle.step import Chunk
    from heddle.weights.checkpoint import Checkpoint, TensorInfo


def served_shape(config: EngineConfig, shape: ModelShape) -> ModelShape:
    """The shape with the context that the settings ask for.

    Raises:
        ConfigError: the model's context is shorter.
    """
    if config.context > shape.context:
        raise ConfigError(
            f"context {config.context} is more than the model's {shape.context}; set at most"
            f" {shape.context}",
            param="context",
        )
    return dataclasses.replace(shape, context=config.context or shape.context)


def served_config(config: EngineConfig, shape: ModelShape) -> EngineConfig:
    """The settings as they hold for a model of this shape. `shape` has the served context.

    In an encoder, every token sees the whole sequence. So one step computes a sequence, however
    long, and no other sequence can use its keys and values.
    """
    if shape.causal:
        return config
    tokens = max(config.batch_tokens, shape.context)
    return dataclasses.replace(config, batch_tokens=tokens, prefix_cache=False, prefix_cache_dir="")


def kept_kinds(model: Decoder, config: EngineConfig) -> list[tuple[StateKind, ...]]:
    """The state kinds of each layer.

    Raises:
        ConfigError: `kv_type` does not fit the model's heads.
    """
    kinds = [model.state(layer) for layer in range(model.shape.layers)]
    flat = [kind for of_layer in kinds for kind in of_layer]
    shapes = [kind.shape for kind in flat if isinstance(kind, Pages | Window)]
    odd = next((dim for dim in sorted(shape.dim for shape in shapes) if dim % 32), None)
    if config.kv_type == "q4" and not all(shape.has_values for shape in shapes):
        raise ConfigError(
            "kv_type q4 cannot hold the latents of this model. Set kv_type to q8_0 or f16",
            param="kv_type",
        )
    if config.kv_type in ("q8_0", "q4") and odd is not None:
        raise ConfigError(
            f"kv_type {config.kv_type} needs heads with a multiple of 32 elements; this model's"
            f" heads have {odd}. Set kv_type to f16",
            param="kv_type",
        )
    return kinds


def position_elements(model: Decoder) -> int:
    """How many elements of keys and values a position has in all layers."""
    kinds = [kind for layer in range(model.shape.layers) for kind in model.state(layer)]
    shapes = [kind.shape for kind in kinds if isinstance(kind, Pages | Window)]
    return sum(shape.heads * shape.dim * shape.parts for shape in shapes)


def served_head(
    model: Decoder, kinds: Sequence[Sequence[StateKind]], config: EngineConfig
) -> PredictionHead | None:
    """The model's prediction head, if it is to be loaded. `kinds` are those of the model's layers.

    It is not if nobody guesses unless a request asks, or if its layer cannot share pages with the
    layers of the model that keep all positions.
    """
    if config.speculation == "off" or model.head is None:
        return None
    flat = [kind for of_layer in kinds for kind in of_layer]
    first = next((kind for kind in flat if isinstance(kind, Pages)), None)
    return model.head if model.head.state(0) == (first,) else None


def loaded_tensors(
    checkpoint: Checkpoint, model: Decoder, head: PredictionHead | None
) -> list[TensorInfo]:
    """The tensors that a load reads: all but those of a prediction head that is not loaded."""
    prefix = f"{model.head.name}." if model.head is not None and head is None else None
    return [
        tensor
        for name, tensor in checkpoint.tensors.items()
        if prefix is None or not name.startswith(prefix)
    ]


def head_config(config: EngineConfig) -> EngineConfig:
    """The settings of the executor of a prediction head: it computes few tokens in a step."""
    tokens = min(config.batch_tokens, max(HEAD_TOKENS, HEAD_TOKENS_OF_SLOT * config.slots))
    return dataclasses.replace(config, batch_tokens=tokens)


def load_of(config: EngineConfig, shape: ModelShape) -> Load:
    """Sizes of the load that the memory must serve. `shape` has the served context."""
    return Load(config.slots, shape.context, config.batch_tokens, config.state_every)


def check_pages(memory: StateMemory, budget: int) -> None:
    """Check that the KV cache of `budget` bytes holds at least one page.

    Raises:
        ConfigError: it holds no page.
    """
    if memory.pages >= 1:
        return
    states = memory.states * memory.snapshot_bytes
    if states:
        raise ConfigError(
            f"kv_cache of {budget} bytes does not hold the states of the slots, {states} bytes, and"
            f" one page of {memory.token_page_bytes} bytes; set a larger kv_cache, or fewer slots",
            param="kv_cache",
        )
    raise ConfigError(
        f"kv_cache of {budget} bytes does not hold one page of {memory.token_page_bytes} bytes;"
        " set a larger kv_cache",
        param="kv_cache",
    )


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers whose pages have one size: number of pages, layers, shape of keys and values."""

    pages: int
    page_bytes: int
    layers: tuple[int, ...]
    shape: KvShape


def page_groups(memory: StateMemory) -> list[PageGroup]:
    """All groups: the group of all positions first, then the windowed ones."""
    return [
        PageGroup(memory.pages, memory.page_bytes, memory.layers, memory.shape),
        *(PageGroup(one.pages, one.page_bytes, one.layers, one.shape) for one in memory.windows),
    ]


def page_tables(chunk: Chunk) -> list[tuple[int, Sequence[int]]]:
    """The number of the first page that the sequence holds and its page ids, for each group."""
    return [(0, chunk.pages), *((window.first, window.pages) for window in chunk.windows)]


def layer_places(memory: StateMemory) -> dict[int, tuple[int, int]]:
    """The place of each layer: index of its group in `page_groups`, and its number in the group."""
    return {
        layer: (group, number)
        for group, one in enumerate(page_groups(memory))
        for number, layer in enumerate(one.layers)
    }


def position_bytes(memory: StateMemory) -> dict[int, float]:
    """The bytes of one position for each layer that keeps keys and values."""
    return {
        layer: group.page_bytes / PAGE_TOKENS / len(group.layers)
        for group in page_groups(memory)
        for layer in group.layers
    }


def fixed_places(memory: StateMemory) -> dict[int, int]:
    """The byte at which each layer with fixed-size state begins in the state of a slot."""
    places, begin = {}, 0
    for layer, size in memory.fixed:
        places[layer] = begin
        begin += size
    return places


def page_layout(memory: StateMemory) -> str:
    """The part of a page format that names the layers of a page, and of a snapshot, in order."""
    shapes = "".join(
        f" {'' if g.shape.has_values else 'latents '}{g.shape.heads}x{g.shape.dim}{g.layers}"
        for g in page_groups(memory)
    )
    windows = "".join(f" {window.positions}" for window in memory.windows)
    fixed = f" {memory.fixed}" if memory.fixed else ""
    return f"{memory.token_page_bytes}{shapes}{windows}{fixed}"


def describe_memory(memory: StateMemory, kv_type: str) -> str:
    """Bytes and tokens of the KV cache, as text for people."""
    tokens = [f"{memory.pages * PAGE_TOKENS:,} tokens"]
    tokens += [
        f"{window.pages * PAGE_TOKENS:,} in the {len(window.layers)} layers that see"
        f" {window.positions:,}"
        for window in memory.windows
    ]
    if memory.fixed:
        tokens.append(
            f"{memory.snapshots:,} snapshots of {memory.snapshot_bytes / 1e6:,.1f} MB, one every"
            f" {memory.snapshot_tokens:,} tokens"
        )
    return f"KV cache {memory.bytes / 1e6:,.0f} MB in {kv_type} ({', '.join(tokens)})"
