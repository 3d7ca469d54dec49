"""The fields of Ollama's API reference, and those of its clients."""

from __future__ import annotations

from typing import Any

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import ignored, refused, served

_BOTH = Api.OLLAMA
_VECTORS = Api.OLLAMA_EMBED | Api.OLLAMA_EMBEDDINGS
_NAMING = Api.OLLAMA_SHOW | Api.OLLAMA_PULL | Api.OLLAMA_DELETE
_SETTINGS = "the settings of the server decide"
_GONE = "Ollama itself no longer reads it"
_IMAGE = "would make an image"
_OTHER_MODEL = "would describe a model with other settings"

ROWS = (
    *served(_BOTH | _VECTORS | _NAMING, "model"),
    *served(_BOTH | _VECTORS, "keep_alive"),
    *served(_BOTH, "stream options logprobs top_logprobs"),
    *served(_BOTH, "format", constrains=True),
    *served(_BOTH, "think", doc="a model that does not reason: no effect"),
    *served(Api.OLLAMA_CHAT, "messages"),
    *served(Api.OLLAMA_CHAT, "tools tool_choice", constrains=True),
    *served(
        _BOTH,
        "temperature top_p presence_penalty frequency_penalty stop max_tokens max_output_tokens",
        doc="as in `options`",
    ),
    *ignored(_BOTH, "user", str, "labels the request"),
    *refused(Api.OLLAMA_GENERATE, "echo", "adds the prompt to the answer", False),
    *served(Api.OLLAMA_GENERATE, "prompt suffix system context raw images"),
    *served(Api.OLLAMA_EMBED, "input truncate dimensions"),
    *ignored(
        _BOTH, "truncate", bool, "a conversation that is too long is an error, unshortened", False
    ),
    *ignored(_BOTH, "shift", bool, "the server never drops tokens of a full context", False),
    *served(Api.OLLAMA_EMBEDDINGS, "prompt"),
    *ignored(_VECTORS, "options", dict[str, Any], "no option acts on a vector", {}),
    *refused(
        Api.OLLAMA_GENERATE,
        "template",
        "is a template in Go's language",
        "",
        instead="send the rendered prompt with raw: true",
    ),
    *refused(Api.OLLAMA_GENERATE, "width height steps", _IMAGE, 0),
    *served(
        Api.OLLAMA_CHAT,
        "role content thinking tool_calls tool_name tool_call_id images",
        within="messages",
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
    # --- models ---
    *served(_NAMING, "name", doc="the older name of `model`"),
    *ignored(Api.OLLAMA_SHOW, "verbose", bool, "the answer has no tokens of a vocabulary", False),
    *refused(Api.OLLAMA_SHOW, "system template", _OTHER_MODEL, "", constrains=False),
    *refused(Api.OLLAMA_SHOW, "options", _OTHER_MODEL, {}, constrains=False),
    *served(Api.OLLAMA_PULL, "stream"),
    *ignored(Api.OLLAMA_PULL, "insecure", bool, "the hub's certificate is always checked", False),
    *ignored(Api.OLLAMA_PULL, "username", str, _GONE, ""),
    *ignored(Api.OLLAMA_PULL, "password", str, _GONE, ""),
)
