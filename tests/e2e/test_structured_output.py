"""Constrained output on the default model always parses and matches, and is bit-identical."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.errors import GrammarError, InvalidRequestError
from heddle.grammars import Grammar
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("costless_guesses")]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "trade": {"enum": ["weaver", "smith", "miller"]},
    },
    "required": ["name", "age", "trade"],
    "additionalProperties": False,
}
ASKED = "Tell me about a person in the village, as JSON."
DRAWN = SamplingParams(temperature=1.0, seed=3, max_tokens=80, logprobs=2)
REQUESTS = [
    (ASKED, replace(DRAWN, grammar=Grammar.json_schema(PERSON))),
    (ASKED, DRAWN),
    (ASKED, replace(DRAWN, seed=4, grammar=Grammar.json_schema(PERSON))),
    ("A date:", replace(DRAWN, grammar=Grammar.of("regex", r"[0-9]{4}-[0-9]{2}-[0-9]{2}"))),
    ("Is the sea blue?", replace(DRAWN, grammar=Grammar.of("choice", ["yes", "no", "it depends"]))),
    ("1 + 1", replace(DRAWN, grammar=Grammar.lark('start: /[0-9]/ ("+" /[0-9]/){2,30}'))),
    (ASKED, replace(DRAWN, temperature=0, grammar=Grammar.json_schema({"type": "object"}))),
]


@pytest.fixture(scope="module")
def engine(model_path):
    with Engine.load(model_path, EngineConfig(threads=2)) as engine:
        yield engine


def bits(output):
    return output.text, output.tokens, output.finish


def run_together(engine, requests):
    with ThreadPoolExecutor(len(requests)) as pool:
        return [bits(output) for output in pool.map(lambda r: engine.complete(*r), requests)]


@pytest.fixture(scope="module")
def expected(model_path):
    with Engine.load(
        model_path, EngineConfig(slots=1, threads=1, prefix_cache=False, speculation="off")
    ) as engine:
        return [bits(engine.complete(*request)) for request in REQUESTS]


def test_outputs_are_what_was_asked_for(expected):
    person, free, other, date, answer, sum_, _ = [text for text, _, _ in expected]
    for text in (person, other):
        fields = json.loads(text)
        assert list(fields) == ["name", "age", "trade"]
        assert 0 <= fields["age"] <= 150
        assert fields["trade"] in PERSON["properties"]["trade"]["enum"]
        assert len(fields["name"]) <= 20
    assert person != other
    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", date)
    assert answer in ("yes", "no", "it depends")
    assert re.fullmatch(r"[0-9](\+[0-9]){2,30}", sum_)
    with pytest.raises(ValueError, match=r"JSON|Expecting|Extra"):
        json.loads(free)


def test_the_end_of_the_grammar_is_a_stop(expected):
    assert [finish for _, _, finish in expected[:1] + expected[2:6]] == [FinishReason.STOP] * 5


def test_in_company_and_from_a_warm_cache(engine, expected):
    assert run_together(engine, REQUESTS) == expected
    assert run_together(engine, REQUESTS[::-1]) == expected[::-1]


def test_after_preemption(model_path, engine):
    words = Grammar.of("regex", "([a-z]{2,9} ){20,40}")
    requests = [
        (ASKED, replace(DRAWN, seed=seed, max_tokens=90, grammar=words)) for seed in range(6)
    ]
    expected = [bits(engine.complete(*request)) for request in requests]
    page_bytes = engine.model.executor.page_bytes
    config = EngineConfig(threads=2, kv_cache=8 * page_bytes, prefix_cache=False)
    with Engine.load(model_path, config) as crowded:
        assert run_together(crowded, requests) == expected
        assert crowded.snapshot().preemptions > 0


SCALARS = st.sampled_from(
    [
        {"type": "integer", "minimum": -5, "maximum": 99},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string", "maxLength": 6},
        {"enum": ["a", "b c", 3]},
        {"const": {"x": [1, None]}},
    ]
)


def _containers(inner):
    arrays = st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most},
        inner,
        st.integers(0, 2),
    )
    objects = st.builds(
        lambda members: {
            "type": "object",
            "properties": members,
            "required": sorted(members)[:1],
            "additionalProperties": False,
        },
        st.dictionaries(st.sampled_from(["a", "b", "ü"]), inner, min_size=1, max_size=2),
    )
    return arrays | objects


def conforms(value, schema):
    """Whether the value is one of the schemas above, judged without llguidance."""
    if "const" in schema or "enum" in schema:
        return any(
            value == ok and type(value) is type(ok)
            for ok in schema.get("enum", [schema.get("const")])
        )
    kind = schema["type"]
    if kind == "object":
        members = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(members)
            and all(conforms(value[name], members[name]) for name in value)
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and len(value) <= schema["maxItems"]
            and all(conforms(one, schema["items"]) for one in value)
        )
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    return value is None if kind == "null" else isinstance(value, bool)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schema=st.recursive(SCALARS, _containers, max_leaves=4), seed=st.integers(0, 2**32))
def test_any_schema_is_followed(engine, schema, seed):
    params = SamplingParams(
        temperature=1.5, seed=seed, max_tokens=400, grammar=Grammar.json_schema(schema)
    )
    output = engine.complete("Say something:", params)
    assert output.finish is FinishReason.STOP
    assert conforms(json.loads(output.text), schema)


def test_with_stop_strings_limits_bias_and_ignore_eos(engine):
    digits = SamplingParams(temperature=1.0, seed=1, grammar=Grammar.of("regex", "[0-9]{30}"))
    whole = engine.complete("Pi:", replace(digits, ignore_eos=True))
    assert re.fullmatch("[0-9]{30}", whole.text)
    assert whole.finish is FinishReason.STOP
    cut = engine.complete("Pi:", replace(digits, stop=(whole.text[7:9],)))
    assert cut.text == whole.text[: whole.text.index(whole.text[7:9])]
    assert cut.finish is FinishReason.STOP
    short = engine.complete("Pi:", replace(digits, max_tokens=4))
    assert whole.text.startswith(short.text)
    assert short.finish is FinishReason.LENGTH
    eager = replace(digits, logit_bias={engine.model.tokenizer.eos_id: 100.0})
    assert re.fullmatch("[0-9]{30}", engine.complete("Pi:", eager).text)


def test_what_leaves_nothing_ends_that_request_alone(engine, expected):
    stuck = replace(DRAWN, grammar=Grammar.of("choice", ["yes"]), bad_words=("yes", "y", "ye"))
    with ThreadPoolExecutor(2) as pool:
        fine = pool.submit(engine.complete, *REQUESTS[3])
        with pytest.raises(InvalidRequestError, match="bad_words excludes") as raised:
            engine.complete("Is it?", stuck)
        assert raised.value.code == "nothing_allowed"
        assert bits(fine.result()) == expected[3]


def test_a_grammar_that_is_refused_is_refused_at_once(engine):
    with pytest.raises(GrammarError, match="grammar cannot be served"):
        engine.complete("x", replace(DRAWN, grammar=Grammar.json_schema({"type": "nope"})))


def test_guesses_go_through_grammars(model_path, expected):
    """A JSON text that the prompt has already: guesses are right, and masks go back."""
    person = expected[0][0]
    prompt = f"{person}\n{person}\n"
    params = replace(DRAWN, temperature=0, grammar=Grammar.json_schema(PERSON))
    results = []
    for speculation in ("off", "auto"):
        with Engine.load(model_path, EngineConfig(threads=2, speculation=speculation)) as engine:
            output = engine.complete(prompt, params)
            results.append(bits(output))
            assert (output.usage.accepted_tokens > 0) == (speculation == "auto")
    assert results[0] == results[1]
