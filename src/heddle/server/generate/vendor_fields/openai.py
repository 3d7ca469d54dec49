"""The fields of OpenAI's API reference: chat, completions, responses and embeddings."""

from __future__ import annotations

from typing import Any, Literal

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import ignored, refused, served

_CHAT, _TEXT, _ITEMS = Api.CHAT, Api.COMPLETIONS, Api.RESPONSES
_ALL = Api.GENERATION | Api.RESPONSES
_SHOWN = "the reasoning itself is in the answer"
_TIER = Literal["auto", "default", "flex", "scale", "priority", "fast", "standard_only"]
_NOT_STORED = "this server stores no answers; send the whole conversation as `input`"
_LABEL = "labels the request"
_CACHE = "the server caches the prefix of every prompt"
_HOSTED = "needs a service of the vendor"
_DETAIL = "the model decides at which size it sees a picture"

ROWS = (
    # --- all routes ---
    *served(_ALL | Api.VECTORS | Api.TOKENIZE | Api.DETOKENIZE, "model"),
    *served(_ALL, "stream"),
    *ignored(_ALL | Api.VECTORS, "user", str, _LABEL),
    *ignored(Api.GENERATION, "metadata", dict[str, str], _LABEL),
    *served(_ITEMS, "metadata"),
    *ignored(_ALL, "safety_identifier", str, _LABEL),
    *ignored(_ALL, "prompt_cache_key", str, _CACHE),
    *ignored(_ALL, "prompt_cache_retention", str, _CACHE, "in_memory", "in-memory"),
    *ignored(_CHAT | _ITEMS, "prompt_cache_options", dict[str, Any], _CACHE, {}),
    *ignored(_ALL, "service_tier", _TIER, "selects a price; see `priority`", "auto", "default"),
    *ignored(_ALL, "store", bool, "the server stores nothing", False),
    *refused(_CHAT | _ITEMS, "moderation", _HOSTED, {}),
    # --- chat and text completions ---
    *served(Api.GENERATION, "n"),
    *served(Api.GENERATION, "response_format", constrains=True),
    *served(_CHAT | _TEXT, "stream_options logprobs"),
    *served(_CHAT | _TEXT, "include_usage", within="stream_options"),
    *refused(
        _CHAT | _TEXT | _ITEMS,
        "include_obfuscation",
        "adds padding to events",
        False,
        within="stream_options",
        constrains=False,
    ),
    *served(Api.GENERATION, "type json_schema", within="response_format"),
    *served(Api.GENERATION, "schema name description strict", within="response_format.json_schema"),
    *served(_TEXT, "prompt best_of echo suffix"),
    # --- chats ---
    *served(_CHAT, "messages top_logprobs"),
    *served(_CHAT, "tools tool_choice parallel_tool_calls", constrains=True),
    *served(_CHAT, "reasoning_effort", doc="as the template's variables, or as a budget of 0"),
    *ignored(_CHAT, "verbosity", str, "a wish about the length", "medium"),
    *ignored(_CHAT, "prediction", dict[str, Any], "asks for speed"),
    *refused(
        _CHAT,
        "functions",
        "is the old form of `tools`",
        [],
        instead="send them as tools",
    ),
    *refused(
        _CHAT,
        "function_call",
        "is the old form of `tool_choice`",
        "none",
        "auto",
        instead="send tool_choice",
    ),
    *refused(_CHAT, "modalities", "asks for audio", ["text"], constrains=False),
    *refused(_CHAT, "audio", "asks for audio", constrains=False),
    *refused(_CHAT, "web_search_options", _HOSTED, constrains=False),
    *served(
        _CHAT | Api.TOKENIZE,
        "role content name tool_call_id tool_calls reasoning_content reasoning parsed",
        within="messages",
    ),
    *refused(
        _CHAT | Api.TOKENIZE,
        "function_call",
        "is the old form of `tool_calls`",
        within="messages",
        instead="send it as tool_calls",
    ),
    *refused(
        _CHAT | Api.TOKENIZE,
        "refusal",
        "templates have no place for it",
        within="messages",
        instead="send it as content",
        constrains=False,
    ),
    *refused(_CHAT | Api.TOKENIZE, "audio", "refers to audio", within="messages", constrains=False),
    *refused(
        _CHAT | Api.TOKENIZE,
        "annotations",
        "templates have no place for it",
        [],
        within="messages",
        constrains=False,
    ),
    *served(_CHAT | Api.TOKENIZE, "type text image_url", within="messages.content"),
    *served(_CHAT | Api.TOKENIZE, "url", within="messages.content.image_url"),
    *ignored(
        _CHAT | Api.TOKENIZE,
        "detail",
        str,
        _DETAIL,
        "auto",
        "high",
        "original",
        within="messages.content.image_url",
    ),
    *ignored(
        _CHAT | Api.TOKENIZE,
        "prompt_cache_breakpoint",
        dict[str, Any],
        _CACHE,
        within="messages.content",
    ),
    *ignored(
        _CHAT | Api.TOKENIZE, "cache_control", dict[str, Any], _CACHE, within="messages.content"
    ),
    *served(_CHAT | Api.TOKENIZE, "type function", within="tools"),
    *served(_CHAT | Api.TOKENIZE, "name description parameters strict", within="tools.function"),
    *ignored(_CHAT | Api.TOKENIZE, "cache_control", dict[str, Any], _CACHE, within="tools"),
    # --- responses ---
    *served(_ITEMS, "input instructions include top_logprobs stream_options"),
    *served(_ITEMS, "text", constrains=True),
    *served(_ITEMS, "tools tool_choice parallel_tool_calls", constrains=True),
    *served(_ITEMS | _CHAT, "reasoning"),
    *served(_ITEMS | _CHAT, "effort", within="reasoning", doc="see `reasoning_effort`"),
    *ignored(_ITEMS | _CHAT, "summary", str, _SHOWN, within="reasoning"),
    *ignored(_ITEMS | _CHAT, "generate_summary", str, _SHOWN, within="reasoning"),
    *ignored(_ITEMS | _CHAT, "context", str, "a wish about old reasoning", within="reasoning"),
    *ignored(_ITEMS | _CHAT, "mode", str, "a wish", "standard", within="reasoning"),
    *served(_ITEMS, "format", within="text", constrains=True),
    *ignored(_ITEMS, "verbosity", str, "a wish about the length", "medium", within="text"),
    *ignored(
        _ITEMS,
        "context_management",
        list[Any],
        "compacts long conversations; a too long conversation is an error",
        [],
    ),
    *refused(
        _ITEMS, "previous_response_id conversation", "refers to stored answers", instead=_NOT_STORED
    ),
    *refused(_ITEMS, "background", "needs stored answers", False),
    *ignored(_ITEMS, "background_options", dict[str, Any], "has no effect without `background`"),
    *ignored(_ITEMS, "client_metadata", dict[str, Any], _LABEL),
    *ignored(_ITEMS, "access_programs", dict[str, Any], "selects the vendor's access rules"),
    *ignored(_ITEMS, "image", dict[str, Any], "is about images that the server would make"),
    *ignored(
        _ITEMS,
        "max_tool_calls",
        int,
        "limits calls of the vendor's own tools, which the server refuses",
    ),
    *ignored(
        _ITEMS,
        "truncation",
        str,
        "a conversation that is too long is an error, unshortened",
        "disabled",
    ),
    *refused(_ITEMS, "prompt", "refers to a stored prompt"),
    *refused(_ITEMS, "response_format", "is the form of chats", instead="send it as text.format"),
    *served(_ITEMS, "type text logprobs prompt_cache_breakpoint", within="input.content"),
    *served(_ITEMS, "image_url", within="input.content"),
    *ignored(_ITEMS, "detail", str, _DETAIL, "auto", "high", "original", within="input.content"),
    *refused(
        _ITEMS,
        "file_id",
        "names a file of the vendor",
        within="input.content",
        instead="send the picture as image_url",
    ),
    *ignored(
        _ITEMS,
        "annotations",
        list[Any],
        "templates have no place for it",
        [],
        within="input.content",
    ),
    *served(_ITEMS, "id status type role content", within="input.message"),
    *ignored(_ITEMS, "phase", str, "labels the message", "final_answer", within="input.message"),
    *served(_ITEMS, "id status type content", within="input.reasoning"),
    *ignored(
        _ITEMS,
        "summary",
        list[Any],
        "templates get the reasoning itself",
        [],
        within="input.reasoning",
    ),
    *ignored(
        _ITEMS,
        "encrypted_content",
        str,
        "only the vendor can read it",
        within="input.reasoning",
    ),
    *served(_ITEMS, "type name description parameters strict", within="tools"),
    *ignored(
        _ITEMS, "defer_loading", bool, "the prompt has the tool at once", False, within="tools"
    ),
    *ignored(
        _ITEMS, "allowed_callers", list[str], "all calls are direct", ["direct"], within="tools"
    ),
    *ignored(
        _ITEMS, "output_schema", dict[str, Any], "describes results, not calls", within="tools"
    ),
    *refused(_ITEMS, "async", "calls are not answered later", False, within="tools"),
    # --- embeddings ---
    *served(Api.EMBEDDINGS, "input encoding_format dimensions"),
)
