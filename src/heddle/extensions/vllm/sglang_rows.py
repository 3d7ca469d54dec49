"""The fields of SGLang's server beyond those of OpenAI's API and vLLM's."""

from __future__ import annotations

from typing import Any

from heddle.parameters import Api
from heddle.server.generate.vendor_fields.row import ignored, refused, served

_ALL = Api.GENERATION | Api.RESPONSES
_PLACE = "says where to compute"
_ADDS = "adds fields to the answer"
_IMAGES = "the model decides how it sees a picture"

ROWS = (
    *served(_ALL, "regex ebnf", constrains=True),
    *refused(_ALL, "stop_regex", "ends the answer", [], instead="use stop"),
    *refused(_ALL, "no_stop_trim", "adds to the text", False),
    *refused(_ALL, "custom_logit_processor", "changes the answer"),
    *ignored(
        _ALL,
        "custom_params",
        dict[str, Any],
        "has no effect without `custom_logit_processor`",
        {},
    ),
    *refused(Api.EMBEDDINGS, "lora_path", "changes the model", []),
    *refused(_ALL, "input_ids", "is a prompt of token ids"),
    *refused(Api.CHAT, "task", "changes the prompt"),
    *refused(_ALL, "session_params", "refers to a stored conversation", {}),
    *refused(
        Api.CHAT,
        "separate_reasoning",
        "reasoning is in `reasoning_content`",
        True,
        constrains=False,
    ),
    *ignored(
        Api.CHAT | Api.RESPONSES,
        "max_tokens",
        int,
        "a wish; chats have `thinking_token_budget`",
        within="reasoning",
    ),
    *ignored(Api.CHAT | Api.RESPONSES, "enabled", bool, "a wish", within="reasoning"),
    *ignored(Api.CHAT | Api.RESPONSES, "exclude", bool, "a wish", within="reasoning"),
    *ignored(Api.CHAT, "stream_reasoning", bool, "events are smaller", True),
    *refused(_ALL, "return_hidden_states return_routed_experts", _ADDS, False, constrains=False),
    *refused(
        _ALL,
        "return_cached_tokens_details return_prompt_token_ids return_meta_info",
        _ADDS,
        False,
        constrains=False,
    ),
    *ignored(_ALL, "routed_experts_start_len", int, "has no effect on these routes", 0),
    *ignored(_ALL, "max_dynamic_patch", int, _IMAGES),
    *ignored(_ALL, "min_dynamic_patch", int, _IMAGES),
    *ignored(_ALL, "images_config", dict[str, Any], _IMAGES, {}),
    *ignored(_ALL, "use_audio_in_video", bool, "the server takes no video", False),
    *ignored(_ALL, "bootstrap_host", str, _PLACE),
    *ignored(_ALL, "bootstrap_port", int, _PLACE),
    *ignored(_ALL, "bootstrap_room", int, _PLACE),
    *ignored(_ALL, "routed_dp_rank", int, _PLACE),
    *ignored(_ALL, "disagg_prefill_dp_rank", int, _PLACE),
    *ignored(_ALL, "data_parallel_rank", int, _PLACE),
    *ignored(_ALL, "rid", str, "labels the request"),
    *ignored(_ALL, "extra_key", str, "labels the request"),
    *ignored(_ALL, "custom_labels", dict[str, str], "labels the request"),
    *ignored(_ALL, "ngram_corpus_id", str, "speculation never changes an answer"),
)
