"""From a request to its answer: what happens once a request, and not once a choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.engine.requests import request as engine_request
from heddle.engine.requests.request import token_rules
from heddle.server.generate import dispatch

if TYPE_CHECKING:
    import pytest

    from fake_server import Running


def test_rules_are_computed_once_for_all_choices(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []

    def counted(params: Any, tokenizer: Any) -> Any:
        computed.append(params)
        return token_rules(params, tokenizer)

    monkeypatch.setattr(dispatch, "token_rules", counted)
    monkeypatch.setattr(engine_request, "token_rules", counted)
    body = {"prompt": "hello", "n": 3, "max_tokens": 2, "bad_words": ["x"]}
    assert shared.post("/v1/completions", body).status_code == 200
    assert len(computed) == 1
