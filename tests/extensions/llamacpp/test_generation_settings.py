"""`generation_settings` from the table of sampling parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest

from heddle.extensions.llamacpp.generation_settings import generation_settings
from heddle.grammars import Grammar
from heddle.parameters import Api
from heddle.sampling_params import SamplingParams, all_parameters
from heddle.server.http.encoding import encode

OTHERS: dict[str, Any] = {
    "stop": ("a", "b"),
    "samplers": ("top_k", "top_p"),
    "engram": [{"name": "e", "weight": 2.0}],
    "engram_form": "lift",
    "speculation": {"drafter": "auto", "length": 3},
    "stop_token_ids": (1, 2),
    "bad_words": ("x",),
}


def test_all_names_of_requests_are_there_but_no_secret() -> None:
    settings = generation_settings(SamplingParams(cache_salt="mine"), 512)
    names = {name for row in all_parameters() for name in row.names(Api.LLAMACPP)}
    assert names - settings.keys() == {"cache_salt"}
    assert b"mine" not in encode(settings)


@pytest.mark.parametrize("name", OTHERS)
def test_values_are_written_as_requests_write_them(name: str) -> None:
    settings = generation_settings(SamplingParams.by_name(**{name: OTHERS[name]}), 512)
    value = OTHERS[name]
    assert settings[name] == (list(value) if isinstance(value, tuple) else value)
    assert encode(settings)


def test_forms_of_llama_cpp() -> None:
    grammar = Grammar.of("regex", "a+")
    params = SamplingParams(logit_bias={1: -math.inf, 2: 0.5}, grammar=grammar, logprobs=3, seed=-7)
    settings = generation_settings(params, 512)
    assert settings["logit_bias"] == [{"token": 1, "bias": False}, {"token": 2, "bias": 0.5}]
    assert (settings["grammar"], settings["n_probs"], settings["seed"]) == ("a+", 3, -7)
    assert (settings["n_predict"], settings["max_tokens"]) == (-1, -1)
