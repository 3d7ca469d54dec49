"""The fields of Anthropic's API reference: messages and count_tokens, with the beta fields."""

from __future__ import annotations

from typing import Any, Literal

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import ignored, refused, served

_ALL = Api.MESSAGES | Api.COUNT
_THINKING = _ALL | Api.CHAT
"""LiteLLM sends `thinking` to chats, too."""
_TIER = Literal["auto", "default", "flex", "scale", "priority", "standard_only"]
_LABEL = "labels the request"
_PRICE = "selects a price or a place of computation"
_CACHE = "the server caches the prefix of every prompt"

ROWS = (
    *served(_ALL, "model messages system output_config"),
    *served(_THINKING, "thinking", doc="as the template's variables, and as a budget"),
    *served(_ALL, "tools tool_choice", constrains=True),
    *served(_ALL, "cache_control", doc=_CACHE),
    *served(Api.MESSAGES, "stream"),
    *served(_THINKING, "type budget_tokens", within="thinking"),
    *ignored(
        _THINKING,
        "display",
        str,
        "the answer has the reasoning, also if it may be left out",
        "summarized",
        within="thinking",
    ),
    *ignored(
        _THINKING, "block_binding", Any, "the server does not read signatures", within="thinking"
    ),
    *served(_ALL, "effort", within="output_config", doc="see `reasoning_effort`"),
    *served(_ALL, "format", within="output_config", constrains=True),
    *ignored(
        _ALL, "task_budget", dict[str, Any], "a wish about the effort", within="output_config"
    ),
    *refused(_ALL, "output_format", "is the old form", instead="send it as output_config.format"),
    *ignored(
        _ALL,
        "context_management",
        dict[str, Any],
        "clears old parts of long conversations; a too long conversation is an error",
        {},
    ),
    *ignored(_ALL, "compaction", Any, "compacts long conversations; a too long one is an error"),
    *ignored(Api.MESSAGES, "metadata", dict[str, Any], _LABEL),
    *ignored(Api.MESSAGES, "service_tier", _TIER, _PRICE, "auto", "standard_only"),
    *ignored(_ALL, "inference_geo", str, _PRICE),
    *ignored(_ALL, "speed", str, _PRICE, "standard"),
    *ignored(_ALL, "billing_policy", Any, _PRICE),
    *ignored(_ALL, "fallback_credit_token", str, _PRICE),
    *ignored(_ALL, "fallbacks", Any, "names models for refused requests", []),
    *ignored(_ALL, "user_profile_id", str, _LABEL),
    *ignored(_ALL, "workspace_id", str, _LABEL),
    *ignored(_ALL, "betas", list[str], "is a header of the API", []),
    *ignored(_ALL, "diagnostics", Any, "asks for further information beside the answer"),
    *refused(_ALL, "mcp_servers", "names tools that the vendor's servers run", []),
    *refused(_ALL, "container", "names a machine of the vendor"),
    *refused(_ALL, "thread", "refers to a stored conversation"),
    # --- tools ---
    *served(_ALL, "name input_schema description strict type cache_control", within="tools"),
    *ignored(
        _ALL, "eager_input_streaming", bool, "events are smaller or larger", False, within="tools"
    ),
    *ignored(_ALL, "defer_loading", bool, "the prompt has the tool at once", False, within="tools"),
    *ignored(
        _ALL,
        "allowed_callers",
        list[str],
        "all calls are direct",
        ["direct"],
        within="tools",
    ),
    *ignored(
        _ALL,
        "input_examples",
        list[Any],
        "templates have no place for examples",
        [],
        within="tools",
    ),
    *refused(
        _ALL,
        "citations",
        "templates have no place for it",
        [],
        within="messages.content",
        constrains=False,
    ),
)
