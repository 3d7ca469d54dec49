"""The fields of vLLM's servers beyond those of the vendors whose APIs they follow."""

from __future__ import annotations

from typing import Any

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import ignored, refused, served

_ALL = Api.GENERATION | Api.RESPONSES
_TRUNCATED = Api.RERANK | Api.SCORE | Api.CLASSIFY | Api.POOLING
_PLACE = "says where to compute"
_ADDS = "adds fields to the answer"

ROWS = (
    # --- constraints ---
    *served(_ALL, "structured_outputs", constrains=True),
    *served(
        _ALL,
        "json regex choice grammar json_object structural_tag",
        within="structured_outputs",
        constrains=True,
    ),
    *refused(
        _ALL,
        "disable_any_whitespace disable_additional_properties",
        "changes the grammar",
        False,
        within="structured_outputs",
    ),
    *refused(_ALL, "whitespace_pattern", "changes the grammar", within="structured_outputs"),
    *served(_ALL, "guided_json guided_regex guided_choice guided_grammar", constrains=True),
    *served(
        Api.GENERATION,
        "structures triggers at_least_one format",
        within="response_format",
        constrains=True,
    ),
    *refused(_ALL, "guided_whitespace_pattern", "changes the grammar"),
    *ignored(_ALL, "guided_decoding_backend", str, "names a library"),
    *refused(_ALL, "allowed_token_ids", "constrains the tokens", [], instead="use logit_bias"),
    *refused(_ALL, "bad_words_ids", "constrains the tokens", [], instead="use bad_words"),
    # --- sampling ---
    *refused(_ALL, "use_beam_search", "changes the answer", False),
    *refused(_ALL, "length_penalty", "is of beam search", 1, 1.0),
    *refused(_ALL, "watermarking", "changes the answer", False, constrains=False),
    *refused(_ALL, "repetition_detection", "ends answers", {}),
    *refused(_ALL, "include_stop_str_in_output", "adds to the text", False),
    *refused(_ALL, "skip_special_tokens", "adds control tokens to the text", True),
    *ignored(
        _ALL,
        "spaces_between_special_tokens",
        bool,
        "the text has no control tokens",
        True,
    ),
    *refused(
        _ALL | Api.EMBEDDINGS,
        "truncate_prompt_tokens",
        "would drop a part of the prompt",
        instead="send a shorter prompt",
    ),
    *ignored(
        _ALL | Api.EMBEDDINGS,
        "truncation_side",
        str,
        "has no effect without `truncate_prompt_tokens`",
    ),
    *served(_TRUNCATED, "truncate_prompt_tokens"),
    *refused(_TRUNCATED, "truncation_side", "texts lose their end", "right"),
    # --- prompts ---
    *served(Api.CHAT | Api.TOKENIZE, "add_generation_prompt"),
    *served(Api.CHAT | Api.TOKENIZE, "continue_final_message", constrains=True),
    *served(Api.CHAT | Api.RESPONSES | Api.TOKENIZE, "chat_template_kwargs"),
    *refused(
        Api.CHAT | Api.TOKENIZE,
        "chat_template",
        "would replace the model's template",
        instead="use the setting of the server",
    ),
    *ignored(Api.CHAT, "chat_template_content_format", str, "the template decides"),
    *refused(Api.CHAT, "documents", "templates have no place for it", [], instead="send messages"),
    *refused(Api.CHAT, "add_special_tokens", "would add tokens to the prompt", False),
    *refused(Api.COMPLETIONS, "add_special_tokens", "would leave out tokens", True),
    *refused(Api.CHAT, "echo", "adds the prompt to the answer", False),
    *refused(Api.COMPLETIONS, "prompt_embeds", "is a prompt of numbers"),
    *ignored(
        _ALL | Api.EMBEDDINGS,
        "mm_processor_kwargs",
        dict[str, Any],
        "the model decides how it sees a picture",
    ),
    *ignored(Api.CHAT, "media_io_kwargs", Any, "the model decides how it sees a picture"),
    # --- reasoning ---
    *served(Api.CHAT, "thinking_token_budget", doc="a model that does not reason: no effect"),
    *ignored(
        Api.COMPLETIONS, "thinking_token_budget", int, "text completions have no reasoning", -1
    ),
    *ignored(Api.CHAT, "include_reasoning", bool, "the answer may have more fields", True),
    # --- answers ---
    *served(Api.CHAT | Api.COMPLETIONS, "prompt_logprobs"),
    *refused(_ALL, "logprob_token_ids", "adds log probabilities", [], constrains=False),
    *refused(
        _ALL,
        "return_tokens_as_token_ids return_token_ids return_prompt_text",
        _ADDS,
        False,
        constrains=False,
    ),
    *ignored(_ALL, "return_token_offsets", bool, "has no effect on these routes", False),
    *ignored(_ALL, "return_mm_kwargs", bool, "has no effect on these routes", True),
    *ignored(_ALL, "routed_experts_prompt_start", int, "has no effect on these routes", 0),
    *ignored(_ALL, "stream_interval", int, "events are smaller", 1),
    *served(
        Api.CHAT | Api.COMPLETIONS,
        "continuous_usage_stats",
        within="stream_options",
        doc="without `include_usage`: no effect",
    ),
    # --- places, labels ---
    *ignored(_ALL | Api.VECTORS, "request_id", str, "labels the request"),
    *ignored(_ALL, "session_id", str, "labels the request"),
    *ignored(_ALL, "kv_transfer_params", dict[str, Any], _PLACE),
    *ignored(_ALL, "ec_transfer_params", dict[str, Any], _PLACE),
    *refused(_ALL, "vllm_xargs", "is for extensions of vLLM", {}, constrains=False),
    *ignored(
        Api.CHAT | Api.TOKENIZE,
        "defer_loading",
        bool,
        "the prompt has the tool at once",
        False,
        within="tools",
    ),
    *ignored(
        Api.CHAT | Api.TOKENIZE,
        "defer_loading",
        bool,
        "the prompt has the tool at once",
        False,
        within="tools.function",
    ),
    *refused(
        Api.RESPONSES,
        "previous_response previous_input_messages",
        "is a conversation in another form",
        instead="send the whole conversation as `input`",
    ),
    *refused(Api.RESPONSES, "enable_response_messages", _ADDS, False, constrains=False),
    # --- embeddings, documents, tokens ---
    *served(Api.EMBEDDINGS, "pooling prompt_name"),
    *served(Api.VECTORS, "cache_salt priority"),
    *refused(Api.EMBEDDINGS, "add_special_tokens", "would leave out tokens", True),
    *refused(Api.EMBEDDINGS, "normalize use_activation", "vectors have length 1", True),
    *refused(Api.EMBEDDINGS, "embed_dtype", "numbers are float32", "float32"),
    *refused(Api.EMBEDDINGS, "endianness", "bytes are little-endian", "native", "little"),
    *served(Api.RERANK, "query documents top_n return_documents instruction"),
    *served(Api.RERANK | Api.SCORE, "max_tokens_per_doc"),
    *refused(Api.RERANK | Api.SCORE, "max_tokens_per_query", "would cut the query", 0),
    *served(Api.SCORE, "text_1 text_2 queries documents data_1 data_2"),
    *served(Api.CLASSIFY | Api.POOLING, "input"),
    *served(Api.POOLING, "encoding_format pooling normalize"),
    *served(Api.SCORE | Api.CLASSIFY | Api.POOLING, "use_activation"),
    *served(Api.TOKENIZE, "messages tools prompt add_special_tokens return_token_strs"),
    *served(Api.DETOKENIZE, "tokens"),
)
