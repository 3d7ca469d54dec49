"""Sampling parameters as a program may give them, and errors that cross processes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heddle import InvalidRequestError, SamplingParams
from heddle.checks import MAX_SALT_LENGTH
from heddle.errors import EngramFileError, HeddleError, ModelFileError, OverloadedError
from heddle.sampling_params import PARAMETERS


def test_numbers_of_numpy_become_pythons() -> None:
    given = SamplingParams(
        max_tokens=np.int64(3),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int32(4),  # type: ignore[arg-type]
        top_p=1,
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        logit_bias={np.int64(7): np.float32(2)},  # type: ignore[dict-item]
        stop=["a"],  # type: ignore[arg-type]
        stop_token_ids=[np.int64(5)],  # type: ignore[arg-type]
    )
    plain = SamplingParams(
        max_tokens=3,
        temperature=0.5,
        top_k=4,
        seed=2**64 - 1,
        logit_bias={7: 2.0},
        stop=("a",),
        stop_token_ids=(5,),
    )
    assert [type(token) for token in given.stop_token_ids] == [int]
    assert given == plain
    for name in SamplingParams.__dataclass_fields__:
        assert type(getattr(given, name)) is type(getattr(plain, name))
    assert [(type(token), type(bias)) for token, bias in given.logit_bias.items()] == [(int, float)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 2.5),
        ("max_tokens", "3"),
        ("top_k", 1.0),
        ("top_k", None),
        ("seed", 1.5),
        ("logprobs", "1"),
        ("temperature", "1"),
        ("temperature", None),
        ("temperature", float("nan")),
        ("temperature", 10**400),
        ("min_p", 1j),
        ("stop", "abc"),
        ("stop", (1,)),
        ("stop_token_ids", 3),
        ("stop_token_ids", (1.5,)),
        ("stop_token_ids", ("1",)),
        ("logit_bias", {1.5: 1}),
        ("logit_bias", {"1": 1}),
        ("logit_bias", {1: "x"}),
        ("cache_salt", 3),
        ("cache_salt", ""),
        ("cache_salt", "x" * 257),
    ],
)
def test_a_wrong_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("field", ["logit_bias", "logits_processors"])
def test_an_empty_map_of_the_caller_is_copied(field: str) -> None:
    given: dict[Any, Any] = {}
    params = SamplingParams(**{field: given})
    given[1] = None
    assert getattr(params, field) == {}


@pytest.mark.parametrize(
    "error",
    [
        HeddleError("why", param="p"),
        OverloadedError("why", retry_after=3),
        ModelFileError("why", field="magic"),
        EngramFileError("why", field="magic"),
    ],
)
def test_errors_are_pickled_whole(error: HeddleError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    ("field", "last", "first_wrong"),
    [
        ("cache_salt", "s" * MAX_SALT_LENGTH, "s" * (MAX_SALT_LENGTH + 1)),
        ("cache_salt", "s", ""),
        ("top_p", 1.0, 1.0000001),
        ("top_p", 5e-324, 0.0),
        ("stop", ["a"], [""]),
        ("bad_words", ["a" * 256], ["a" * 257]),
        ("bad_words", ["a"] * 1000, ["a"] * 1001),
        ("stop_token_ids", [1] * 256, [1] * 257),
        ("logit_bias", {0: 100.0}, {0: 100.1}),
        ("logit_bias", {0: -100.0}, {-1: 0.0}),
        ("samplers", ["top_k", "top_p"], ["top_k", "top_k"]),
        ("speculation", {"length": 1}, {"length": 0}),
        ("speculation", {"length": 31}, {"length": 32}),
    ],
)
def test_both_sides_of_the_end_of_a_range(field: str, last: Any, first_wrong: Any) -> None:
    SamplingParams(**{field: last})
    with pytest.raises(InvalidRequestError) as refused:
        SamplingParams(**{field: first_wrong})
    assert (refused.value.param or "").startswith(field)


def test_min_tokens_may_equal_max_tokens() -> None:
    assert SamplingParams(min_tokens=3, max_tokens=3).min_tokens == 3
    with pytest.raises(InvalidRequestError, match=r"at most max_tokens \(3\), got 4"):
        SamplingParams(min_tokens=4, max_tokens=3)


def test_another_choice_does_not_score_the_prompt_again() -> None:
    params = SamplingParams(seed=1, prompt_logprobs=2)
    other = params.for_another_choice(5)
    assert (other.seed, other.prompt_logprobs) == (5, None)
    assert (params.seed, params.prompt_logprobs) == (1, 2)


def test_another_seed_changes_nothing_else_and_copies_no_bias() -> None:
    params = SamplingParams(seed=1, top_k=3, logit_bias={1: 2.0}, stop=("a",))
    other = params.with_seed(2**64 - 1)
    assert other == replace(params, seed=2**64 - 1)
    assert other.logit_bias is params.logit_bias
    assert params.seed == 1


def test_the_docstring_defines_every_parameter() -> None:
    assert SamplingParams.__doc__ is not None
    for row in PARAMETERS:
        assert f"{row.name} ({row.kind.words}): {row.doc}" in SamplingParams.__doc__
