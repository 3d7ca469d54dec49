"""Parameters of requests that an extension brings, by the example of engram tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heddle.doors import Extension
from heddle.errors import ConfigError, InvalidRequestError
from heddle.extensions.engrams.parameters import EngramChoice, EngramForm, EngramParams
from heddle.extensions.engrams.settings import EngramSettings
from heddle.parameters import rows_of
from heddle.sampling_params import PARAMETERS, SamplingParams, all_parameters, brought_parameters

PARAMS = "heddle.extensions.engrams.parameters:EngramParams"


@pytest.mark.parametrize(
    ("field", "last", "first_wrong"),
    [
        ("engram", {"name": "a", "weight": 1000}, {"name": "a", "weight": 1000.1}),
        ("engram", {"name": "a", "weight": 0.001}, {"name": "a", "weight": 0}),
        ("engram", [str(n) for n in range(8)], [str(n) for n in range(9)]),
    ],
)
def test_both_sides_of_the_end_of_a_range(field: str, last: Any, first_wrong: Any) -> None:
    SamplingParams.by_name(**{field: last})
    with pytest.raises(InvalidRequestError) as refused:
        SamplingParams.by_name(**{field: first_wrong})
    assert (refused.value.param or "").startswith(field)


def test_values_by_name_are_where_they_belong() -> None:
    params = SamplingParams.by_name(top_k=3, engram="docs", engram_form="literal")
    brought = EngramParams(engram=(EngramChoice("docs"),), engram_form=EngramForm.LITERAL)
    assert params == SamplingParams(top_k=3, extensions=(brought,))
    assert params.of(EngramParams) == brought
    assert (params.value("top_k"), params.value("engram_form")) == (3, EngramForm.LITERAL)


def test_values_by_name_join_those_of_classes() -> None:
    assert SamplingParams.by_name(extensions=(), engram="a") == SamplingParams.by_name(engram="a")
    with pytest.raises(InvalidRequestError, match="holds EngramParams twice"):
        SamplingParams.by_name(extensions=(EngramParams(engram_alpha=1),), engram="a")


def test_defaults_are_no_parameters_of_an_extension() -> None:
    """So a request without a table has no work for its rules."""
    params = SamplingParams.by_name(engram=[], engram_in_reasoning=True)
    assert params.extensions == ()
    assert params == SamplingParams()
    assert params.value("engram_alpha") is None


def test_only_parameters_are_carried() -> None:
    wrong: Any = (EngramSettings(engram_alpha=1.0),)
    with pytest.raises(InvalidRequestError, match="must hold values of class ExtensionParams"):
        SamplingParams(extensions=wrong)


def test_a_copy_keeps_them() -> None:
    params = SamplingParams.by_name(engram="a")
    assert params.with_seed(1).extensions == replace(params, top_k=2).extensions
    assert params.having(EngramParams()) == SamplingParams()


def test_they_follow_the_core_s_in_the_table() -> None:
    rows = all_parameters()
    first = rows.index(rows_of(EngramParams)[0])
    assert rows[first : first + 4] == rows_of(EngramParams)
    assert first >= len(PARAMETERS)


@pytest.mark.parametrize(
    "references", [(PARAMS, PARAMS), ("heddle.sampling_params:SamplingParams",)]
)
def test_two_parameters_of_one_name_are_refused(
    monkeypatch: pytest.MonkeyPatch, references: tuple[str, ...]
) -> None:
    found = {"x": Extension(parameters=references)}
    monkeypatch.setattr("heddle.sampling_params.extensions", lambda: found)
    brought_parameters.cache_clear()
    try:
        with pytest.raises(ConfigError, match=f"parameters are named .*one is of {references[0]}"):
            brought_parameters()
    finally:
        brought_parameters.cache_clear()


def test_the_docstring_defines_every_parameter() -> None:
    assert EngramParams.__doc__ is not None
    for row in rows_of(EngramParams):
        assert f"{row.name} ({row.kind.words}): {row.doc}" in EngramParams.__doc__
