"""Describes a model for `/api/show`: a loaded one, or the files of another one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from heddle.errors import UnsupportedParameterError
from heddle.parameters import Api
from heddle.sampling_params import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.engine import Engine
    from heddle.extensions.ollama.fetching import FileFacts

Json = dict[str, Any]


def described_model(engine: Engine) -> Json:
    """Template, default options, sizes and capabilities of a model."""
    model = engine.model
    return {
        "parameters": _parameters(model.sampling_defaults, engine.context),
        "template": "" if model.template is None else model.template.source,
        "model_info": _sizes(engine),
        "capabilities": _capabilities(engine),
    }


def described_files(facts: FileFacts | None) -> Json:
    """The same of the files of a model that is not loaded; None: they are not on this machine.

    A model without a chat template in its metadata is not known to call functions.
    """
    metadata = {} if facts is None else dict(facts.metadata)
    template = str(metadata.pop("tokenizer.chat_template", ""))
    is_plain = (str, int, float, bool)
    return {
        "parameters": _parameters({} if facts is None else facts.sampling),
        "template": template,
        "model_info": {name: value for name, value in metadata.items() if type(value) in is_plain},
        "capabilities": (
            ["completion", *(["tools"] if template else [])]
            if facts is None or facts.generates
            else ["embedding"]
        ),
    }


def _parameters(defaults: Mapping[str, object], context: int | None = None) -> str:
    """A line for each default of a sampling parameter, under Ollama's names."""
    names = {row.name: row.names(Api.OLLAMA) for row in PARAMETERS}
    lines = [
        f"{names[name][-1]:<30} {json.dumps(value)}"
        for name, value in defaults.items()
        if names.get(name)
    ]
    return "\n".join(lines if context is None else [*lines, f"{'num_ctx':<30} {context}"])


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
    if model.eyes is not None:
        found.append("vision")
    try:
        model.tokenizer.encode_fill_in("", "")
    except UnsupportedParameterError:
        return found
    return [*found, "insert"]
