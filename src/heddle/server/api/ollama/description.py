"""Describes a loaded model for `/api/show`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from heddle.errors import UnsupportedParameterError
from heddle.parameters import Api
from heddle.types import PARAMETERS

if TYPE_CHECKING:
    from heddle.engine import Engine

Json = dict[str, Any]


def described_model(engine: Engine) -> Json:
    """Template, default options, sizes and capabilities of a model."""
    model = engine.model
    return {
        "parameters": _parameters(engine),
        "template": "" if model.template is None else model.template.source,
        "model_info": _sizes(engine),
        "capabilities": _capabilities(engine),
    }


def _parameters(engine: Engine) -> str:
    """A line for each default of a sampling parameter, under Ollama's names."""
    names = {row.name: row.names(Api.OLLAMA) for row in PARAMETERS}
    defaults = engine.model.sampling_defaults
    lines = [
        f"{names[name][-1]:<30} {json.dumps(value)}"
        for name, value in defaults.items()
        if names[name]
    ]
    return "\n".join([*lines, f"{'num_ctx':<30} {engine.context}"])


def _sizes(engine: Engine) -> Json:
    """The sizes under GGUF's names. The context is that of this server."""
    info, shape = engine.model.info, engine.model.shape
    sizes = {
        "context_length": engine.context,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "attention.head_count_kv": shape.kv_heads,
        "vocab_size": shape.vocabulary,
    }
    return {
        "general.architecture": info.architecture,
        "general.basename": info.id,
        "general.parameter_count": info.parameters,
        **{f"{info.architecture}.{name}": size for name, size in sizes.items()},
    }


def _capabilities(engine: Engine) -> list[str]:
    """Ollama's names of what a model can do.

    Clients offer only models with `completion` for chats. Every model can make embeddings, but only
    those that cannot generate are listed so, as in Ollama.
    """
    model = engine.model
    if not model.shape.causal:
        return ["embedding"]
    found = ["completion"]
    if model.template is not None:
        found.append("tools")
        if model.template.dialect.marks is not None:
            found.append("thinking")
    try:
        model.tokenizer.encode_fill_in("", "")
    except UnsupportedParameterError:
        return found
    return [*found, "insert"]
