"""Every sampling field of a body reaches the sampler under the name its clients use."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from fake_model import FakeTokenizer
from heddle.extensions.anthropic.schemas import MessagesRequest
from heddle.extensions.llamacpp.infill import InfillRequest
from heddle.parameters import Integer, Number, Parameter
from heddle.sampling_params import SamplingParams, Stage, all_parameters, brought_parameters
from heddle.server.api.openai.response_schemas import ResponsesRequest
from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest
from heddle.server.generate.parameters import parameters_of
from patience import PATIENCE

if TYPE_CHECKING:
    from fake_server import Running
    from heddle.server.generate.parameters import SamplingSchema

ASKED = {"role": "user", "content": "x"}

STRINGS_AND_LISTS: dict[str, Any] = {
    "dry_sequence_breakers": ["\n"],
    "samplers": ["top_k", "typ_p", "temp"],
    "bad_words": ["foo"],
    "stop": ["x"],
    "stop_token_ids": [3, 7],
    "logit_bias": {"7": 1.5},
    "ignore_eos": True,
    "speculation": "off",
    "cache_salt": "mine",
    "engram": ["docs", {"name": "api", "weight": 2.5}],
    "engram_form": "literal",
    "lora": ["mine", {"id": 3, "scale": 0.5}],
    "engram_in_reasoning": False,
    "logits_processors": {"only": {"token": 7}},
}

BODIES: dict[type[SamplingSchema], dict[str, Any]] = {
    ChatRequest: {"messages": [ASKED]},
    CompletionRequest: {"prompt": "x"},
    InfillRequest: {"input_prefix": "x", "input_suffix": "y"},
    ResponsesRequest: {"input": "x"},
    MessagesRequest: {"model": "fake", "messages": [ASKED], "max_tokens": 9},
}


def value_for(row: Parameter) -> Any:
    """A value that JSON may have for a parameter, and that is not its default."""
    if isinstance(row.kind, Number):
        values = (2, 3) if isinstance(row.kind, Integer) else (0.25, 2.0)
        return next(value for value in values if value in row.kind and value != row.default)
    return STRINGS_AND_LISTS[row.name]


def names_in(schema: type[SamplingSchema], row: Parameter) -> tuple[str, ...]:
    return next((names for other, names in schema.offered if other is row), ())


def params_of(schema: type[SamplingSchema], **fields: Any) -> SamplingParams:
    return SamplingParams.by_name(
        **parameters_of(schema(**BODIES[schema] | fields), FakeTokenizer())
    )


@pytest.mark.parametrize("schema", BODIES)
@pytest.mark.parametrize("row", all_parameters(), ids=lambda row: row.name)
def test_every_name_of_a_field_changes_its_parameter(
    row: Parameter, schema: type[SamplingSchema]
) -> None:
    plain = params_of(schema)
    for name in names_in(schema, row):
        params = params_of(schema, **{name: value_for(row)})
        brought = brought_parameters().get(row.name)
        held = params if brought is None else params.of(brought)
        changed = replace(held, **{row.name: plain.value(row.name)})
        assert (changed if brought is None else params.having(changed)) == plain
        assert params != plain


@pytest.mark.parametrize("schema", BODIES)
def test_no_schema_has_a_field_under_a_name_that_its_requests_do_not_offer(
    schema: type[SamplingSchema],
) -> None:
    own = {
        "grammar",
        "logprobs",
        "prompt_logprobs",
        "post_sampling_probs",
    }  # their requests read these themselves
    for row in all_parameters():
        names = {row.name, *row.aliases} - own
        assert names & schema.model_fields.keys() == set(names_in(schema, row))


def test_requests_are_told_what_a_field_means_and_takes() -> None:
    fields = ChatRequest.model_json_schema()["properties"]
    assert fields["min_p"]["description"] == "Keeps tokens with p ≥ `min_p` times the highest p."
    assert fields["min_p"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 1}


def test_a_field_that_a_schema_declares_itself_stays_as_it_is() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        ResponsesRequest(input="x", max_output_tokens=0)
    assert MessagesRequest.model_fields["max_tokens"].is_required()


def both(body: dict[str, Any]) -> tuple[SamplingParams, SamplingParams]:
    return params_of(ChatRequest, **body), params_of(CompletionRequest, **body)


def test_names_of_llama_cpp() -> None:
    for params in both({"repeat_penalty": 1.3, "samplers": ["typ_p", "temperature", "top_k"]}):
        assert params.repetition_penalty == 1.3
        assert params.samplers == (Stage.TYPICAL_P, Stage.TEMPERATURE, Stage.TOP_K)
    [params, _] = both({"repeat_penalty": 1.3, "repetition_penalty": 1.3})
    assert params.repetition_penalty == 1.3
    [params, _] = both({"top_k": -1, "top_n_sigma": -1.0, "mirostat": 0})
    assert (params.top_k, params.top_n_sigma) == (-1, -1.0)  # off, as with 0


@pytest.mark.parametrize(
    ("bias", "totals"),
    [
        ({"ab": -100, "b": -100}, {1: -100, 2: -100}),
        ({"bbb": 60}, {2: 100}),
        ([["b", 100], ["b", 100], ["b", -50], ["b", -80]], {2: 70}),
        ([["b", False], ["ab", 100]], {1: 100, 2: -math.inf}),
    ],
)
def test_biases_of_texts_that_share_a_token_add_up_within_the_range(
    bias: Any, totals: dict[int, float]
) -> None:
    assert params_of(ChatRequest, logit_bias=bias).logit_bias == totals


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
