"""Writes sampling parameters as llama.cpp's `generation_settings`."""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING

from heddle.parameters import Api
from heddle.sampling_params import all_parameters

if TYPE_CHECKING:
    from heddle.sampling_params import SamplingParams
    from heddle.server.generate.usage import Json

RANDOM_SEED = 2**32 - 1
"""llama.cpp's number for a random seed. Requests also write -1."""
_CONSTANT: Json = {
    "n_keep": 0,
    "n_discard": 0,
    "min_keep": 0,
    "stream": False,
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "timings_per_token": False,
}
"""Settings of llama.cpp that have one value here."""


def generation_settings(params: SamplingParams, context: int) -> Json:
    """The parameters under all names of llama.cpp's requests, from the table of parameters.

    `context` is the most tokens of a sequence.
    """
    settings: Json = {"n_ctx": context}
    for row in all_parameters():
        value = _json(params.value(row.name))
        settings |= dict.fromkeys(row.names(Api.LLAMACPP), value)
    del settings["cache_salt"]  # a secret of the client
    if params.max_tokens is None:
        settings |= {"max_tokens": -1, "n_predict": -1}
    settings["seed"] = RANDOM_SEED if params.seed is None else params.seed
    settings["logit_bias"] = [
        {"token": id, "bias": bias if math.isfinite(bias) else False}
        for id, bias in params.logit_bias.items()
    ]
    grammar = "" if params.grammar is None else params.grammar.text
    settings |= {"n_probs": params.logprobs or 0, "grammar": grammar}
    settings["lora"] = settings.get("lora") or []
    return settings | {"post_sampling_probs": params.post_sampling_probs} | _CONSTANT


def _json(value: object) -> object:
    if isinstance(value, tuple):
        return [_json(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.value if isinstance(value, Enum) else value
