"""Every sampling field of a body reaches the sampler under the name its clients use."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from fake_model import FakeTokenizer
from heddle.server.api.openai.requests import chat_params, completion_params
from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest
from heddle.types import SamplingParams, Stage
from patience import PATIENCE

if TYPE_CHECKING:
    from conftest import Running

ASKED = {"role": "user", "content": "x"}

FIELDS: dict[str, Any] = {
    "max_tokens": 50,
    "min_tokens": 3,
    "temperature": 0.7,
    "dynatemp_range": 0.2,
    "dynatemp_exponent": 1.5,
    "top_k": 30,
    "top_p": 0.8,
    "min_p": 0.1,
    "typical_p": 0.9,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "repetition_penalty": 1.2,
    "repeat_last_n": 64,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 128,
    "dry_sequence_breakers": ["\n"],
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
    "samplers": ["top_k", "typ_p", "temp"],
    "bad_words": ["foo"],
    "seed": 5,
    "stop": ["x"],
    "stop_token_ids": [3, 7],
    "logit_bias": {"7": 1.5},
    "ignore_eos": True,
    "cache_salt": "mine",
}


def both(body: dict[str, Any]) -> tuple[SamplingParams, SamplingParams]:
    return (
        chat_params(ChatRequest(messages=[ASKED], **body)),  # type: ignore[list-item]
        completion_params(CompletionRequest(prompt="x", **body)),
    )


def test_each_field_changes_its_parameter() -> None:
    others = {"logprobs", "prompt_logprobs", "grammar", "shown_specials"}
    assert set(FIELDS) == {field.name for field in fields(SamplingParams)} - others
    plain = both({})
    for name, value in FIELDS.items():
        for params, default in zip(both({name: value}), plain, strict=True):
            changed = [
                field.name
                for field in fields(SamplingParams)
                if getattr(params, field.name) != getattr(default, field.name)
            ]
            assert changed == [name]


def test_names_of_llama_cpp() -> None:
    for params in both({"repeat_penalty": 1.3, "samplers": ["typ_p", "temperature", "top_k"]}):
        assert params.repetition_penalty == 1.3
        assert params.samplers == (Stage.TYPICAL_P, Stage.TEMPERATURE, Stage.TOP_K)
    [params, _] = both({"repeat_penalty": 1.3, "repetition_penalty": 1.3})
    assert params.repetition_penalty == 1.3
    [params, _] = both({"top_k": -1, "top_n_sigma": -1.0, "mirostat": 0})
    assert (params.top_k, params.top_n_sigma) == (-1, -1.0)  # off, as with 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_strings_reach_the_executor_as_tokens(shared: Running, path: str) -> None:
    word = "ab" if path == "/v1/completions" else "ba"
    settings = {"bad_words": [word], "min_tokens": 2, "dry_multiplier": 1.0, "max_tokens": 3}
    prompt = {"prompt": "x"} if path == "/v1/completions" else {"messages": [ASKED]}
    answer = shared.post(path, prompt | settings | {"dry_sequence_breakers": ["b"]})
    assert answer.status_code == 200
    [occupant] = [o for o in shared.executor.slots.values() if o.params.bad_words == (word,)]
    encode = FakeTokenizer().encode
    assert occupant.rules.bad_sequences == (tuple(encode(word)), tuple(encode(" " + word)))
    assert occupant.rules.end_tokens == (0,)
    assert occupant.rules.breakers is not None
    assert occupant.rules.breakers.sequences == (tuple(encode("b")),)


@pytest.mark.parametrize(
    ("found_by", "asked"),
    [("breakers", {"dry_multiplier": 1.0}), ("spellings", {"bad_words": ["ab"]})],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_nobody_waits_while_strings_are_looked_up(
    shared: Running, monkeypatch: Any, found_by: str, asked: dict[str, Any], path: str
) -> None:
    """Which takes a second for 32 breakers in a vocabulary of 152,000."""
    begun, may_go_on = threading.Event(), threading.Event()
    tokenizer = shared.engine.model.tokenizer
    original = getattr(tokenizer, found_by)

    def slow(strings: Any) -> Any:
        begun.set()
        assert may_go_on.wait(PATIENCE)
        return original(strings)

    monkeypatch.setattr(tokenizer, found_by, slow)
    bodies = {"/v1/completions": {"prompt": "x"}, "/v1/responses": {"input": "x"}}
    body = bodies.get(path, {"messages": [ASKED]}) | asked
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(shared.post, path, body)
        try:
            assert begun.wait(PATIENCE)
            assert shared.get("/health").status_code == 200
        finally:
            may_go_on.set()
        assert answer.result().status_code == 200
