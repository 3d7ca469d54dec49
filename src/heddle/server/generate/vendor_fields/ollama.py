"""The fields of Ollama's API reference, and those of its clients."""

from __future__ import annotations

from typing import Any

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import ignored, refused, served

_BOTH = Api.OLLAMA
_ALL = _BOTH | Api.OLLAMA_EMBED
_SETTINGS = "the settings of the server decide"
_GONE = "Ollama itself no longer reads it"
_IMAGE = "would make an image"

ROWS = (
    *served(_ALL, "model keep_alive"),
    *served(_BOTH, "stream options logprobs top_logprobs"),
    *served(_BOTH, "format", constrains=True),
    *served(_BOTH, "think", doc="a model that does not reason: no effect"),
    *served(Api.OLLAMA_CHAT, "messages"),
    *served(Api.OLLAMA_CHAT, "tools", constrains=True),
    *served(Api.OLLAMA_GENERATE, "prompt suffix system context raw"),
    *served(Api.OLLAMA_EMBED, "input truncate dimensions"),
    *ignored(
        _BOTH, "truncate", bool, "a conversation that is too long is an error, unshortened", False
    ),
    *ignored(_BOTH, "shift", bool, "the server never drops tokens of a full context", False),
    *ignored(Api.OLLAMA_EMBED, "options", dict[str, Any], "no option acts on a vector", {}),
    *refused(
        Api.OLLAMA_GENERATE,
        "template",
        "is a template in Go's language",
        "",
        instead="send the rendered prompt with raw: true",
        constrains=False,
    ),
    *refused(Api.OLLAMA_GENERATE, "images", "the server reads no images", [], constrains=False),
    *refused(Api.OLLAMA_GENERATE, "width height steps", _IMAGE, 0, constrains=False),
    *served(
        Api.OLLAMA_CHAT,
        "role content thinking tool_calls tool_name tool_call_id",
        within="messages",
    ),
    *refused(
        Api.OLLAMA_CHAT,
        "images",
        "the server reads no images",
        [],
        within="messages",
        constrains=False,
    ),
    *served(Api.OLLAMA_CHAT, "type function", within="tools"),
    *refused(Api.OLLAMA_CHAT, "items", "is no part of a function", within="tools"),
    *served(
        _BOTH, "num_ctx", within="options", doc="above the context of the server it has no effect"
    ),
    *ignored(_BOTH, "num_batch", int, _SETTINGS, within="options"),
    *ignored(_BOTH, "num_gpu", int, _SETTINGS, -1, within="options"),
    *ignored(_BOTH, "main_gpu", int, _SETTINGS, 0, within="options"),
    *ignored(_BOTH, "num_thread", int, _SETTINGS, 0, within="options"),
    *ignored(_BOTH, "use_mmap", bool, _SETTINGS, within="options"),
    *ignored(
        _BOTH, "num_keep", int, "the server never drops tokens of a full context", within="options"
    ),
    *ignored(_BOTH, "draft_num_predict", int, "answers are the same with drafts", within="options"),
    *ignored(_BOTH, "numa", bool, _GONE, False, within="options"),
    *ignored(_BOTH, "low_vram", bool, _GONE, False, within="options"),
    *ignored(_BOTH, "f16_kv", bool, _GONE, True, within="options"),
    *ignored(_BOTH, "logits_all", bool, _GONE, False, within="options"),
    *ignored(_BOTH, "vocab_only", bool, _GONE, False, within="options"),
    *ignored(_BOTH, "use_mlock", bool, _GONE, False, within="options"),
    *ignored(_BOTH, "embedding_only", bool, _GONE, False, within="options"),
    *ignored(_BOTH, "tfs_z", float, _GONE, 1, 1.0, within="options"),
    *ignored(_BOTH, "penalize_newline", bool, _GONE, True, within="options"),
)
