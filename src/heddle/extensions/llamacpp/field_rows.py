"""The fields of llama.cpp's server beyond those of the vendors whose APIs it follows."""

from __future__ import annotations

from typing import Any

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import ignored, refused, served

_ALL = Api.GENERATION | Api.RESPONSES
_OPENAI = Api.CHAT | Api.COMPLETIONS | Api.RESPONSES
_CONTEXT = "the server never drops tokens of a full context"

ROWS = (
    *served(_ALL, "grammar json_schema", constrains=True),
    *served(Api.GENERATION, "schema", within="response_format", constrains=True),
    *refused(_ALL, "grammar_lazy", "changes where a grammar begins", False),
    *refused(_ALL, "grammar_triggers", "changes where a grammar begins", []),
    *ignored(_ALL, "preserved_tokens", list[Any], "has no effect without `grammar_lazy`", []),
    *served(Api.CHAT, "verbose", doc="`__verbose.prompt` of the answer is the rendered prompt"),
    *served(Api.CHAT, "thinking_budget_tokens", doc="a model that does not reason: no effect"),
    *refused(
        Api.CHAT,
        "reasoning_format",
        "reasoning is in `reasoning_content`",
        "auto",
        "deepseek",
        "deepseek-legacy",
        constrains=False,
    ),
    *refused(
        Api.CHAT,
        "reasoning_in_content thinking_forced_open",
        "reasoning is in `reasoning_content`",
        False,
        constrains=False,
    ),
    *ignored(Api.CHAT, "reasoning_control", bool, "the server has no such route", False),
    *refused(
        Api.CHAT,
        "parse_tool_calls",
        "calls are in `tool_calls`",
        True,
        constrains=False,
    ),
    *ignored(_ALL, "cache_prompt", bool, "answers are the same with a cache", True),
    *ignored(_ALL, "n_cache_reuse", int, "answers are the same with a cache", 0),
    *ignored(_ALL, "t_max_prompt_ms", float, "a wish about time", -1.0, 0.0),
    *ignored(_ALL, "t_max_predict_ms", float, "a wish about time", -1.0, 0.0),
    *ignored(_ALL, "n_indent", int, "a wish about the text", 0),
    *ignored(_ALL, "n_keep", int, _CONTEXT, 0, -1),
    *ignored(_ALL, "n_discard", int, _CONTEXT, 0),
    *ignored(_ALL, "penalize_nl", bool, "penalties treat line breaks as other tokens", True),
    *ignored(_ALL, "timings_per_token", bool, "the last event has the timings", False),
    *ignored(_ALL, "sse_ping_interval", int, "comments are not part of the answer", -1),
    *ignored(_ALL, "speculative.n_max", int, "speculation never changes an answer"),
    *ignored(_ALL, "speculative.n_min", int, "speculation never changes an answer"),
    *ignored(_ALL, "speculative.p_min", float, "speculation never changes an answer"),
    *ignored(_OPENAI, "response_fields", list[str], "the answer has more fields", []),
    *refused(_ALL, "min_keep", "changes the samplers", 0, 1, constrains=False),
    *refused(_OPENAI, "n_probs", "adds probabilities", 0, constrains=False, instead="use logprobs"),
    *refused(
        _OPENAI,
        "post_sampling_probs",
        "adds probabilities",
        False,
        instead="use logprobs",
        constrains=False,
    ),
    *refused(_OPENAI, "return_tokens", "adds token ids", False, constrains=False),
    *served(Api.GENERATION, "return_progress", doc="in streams"),
    *refused(Api.RESPONSES, "return_progress", "adds events", False, constrains=False),
    *refused(Api.EMBEDDINGS | Api.EMBEDDING, "lora", "changes the model", []),
    # --- /completion and /infill ---
    *served(
        Api.LLAMACPP,
        "prompt n_cmpl n_probs post_sampling_probs return_tokens response_fields input_prefix"
        " input_suffix input_extra",
    ),
    *served(Api.LLAMACPP, "prompt_string content multimodal_data", within="prompt"),
    *served(Api.EMBEDDINGS, "prompt_string content", within="input"),
    *served(Api.LLAMACPP, "text filename time", within="input_extra"),
    *refused(
        Api.LLAMACPP,
        "stream_options",
        "the last event has the counts",
        {},
        constrains=False,
    ),
    # --- other routes ---
    *served(Api.TOKENIZE, "content add_special parse_special with_pieces"),
    *served(Api.EMBEDDING, "model content input encoding_format embd_normalize"),
    *served(
        Api.APPLY_TEMPLATE,
        "model messages tools tool_choice add_generation_prompt continue_final_message"
        " chat_template_kwargs",
    ),
)
