"""The field `speculation` of bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running


@pytest.mark.parametrize(
    "given", ["off", "auto", {"drafter": "lookup", "length": 3}, {"length": 2}]
)
def test_it_is_served(serve: Callable[..., Running], given: object) -> None:
    body = {"prompt": "hello hello hello", "max_tokens": 20, "speculation": given}
    assert serve().post("/v1/completions", body).status_code == 200


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (7, "speculation must be auto, off, or an object with drafter and length, got 7"),
        ({"depth": 3}, "speculation must be auto, off, or an object"),
        ({"drafter": "lookup", "length": 99}, "speculation.length must be in [1, 31], got 99"),
        ({"drafter": "lookup", "length": "3"}, "speculation.length"),
        ("tarot", "speculation names the drafter 'tarot'; this model has lookup, engram"),
    ],
)
def test_what_is_wrong_is_named(serve: Callable[..., Running], given: object, said: str) -> None:
    body: dict[str, Any] = {"prompt": "hello", "max_tokens": 3, "speculation": given}
    refused = serve().post("/v1/completions", body)
    assert refused.status_code == 400
    assert said in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"].startswith("speculation")
