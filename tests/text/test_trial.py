"""The child process that grammars are tried in."""

from __future__ import annotations

import gc

import pytest

from fake_model import FakeTokenizer
from heddle.errors import GrammarError
from heddle.text.trial import ByteTokens, Trial
from heddle.types import Grammar

ENDLESS = Grammar.json_schema(
    {"allOf": [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{i}}}"} for i in range(40)]},
    "guided_json",
)


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial(FakeTokenizer(), seconds=1)


def test_what_takes_too_long_is_refused_and_the_next_is_not(trial: Trial) -> None:
    trial.check(Grammar.regex("a*"))
    with pytest.raises(GrammarError, match="guided_json cannot be served: compiling it") as refusal:
        trial.check(ENDLESS)
    assert refusal.value.param == "guided_json"
    trial.check(Grammar.regex("b*"))


def test_what_is_wrong_is_left_to_who_compiles_it(trial: Trial) -> None:
    trial.check(Grammar.regex("("))
    trial.check(Grammar.lark("start: nowhere"))


def test_a_child_that_has_gone_is_a_refusal_once(trial: Trial) -> None:
    trial.check(Grammar.regex("c*"))
    child = trial._child
    assert child is not None
    assert child.stdin is not None
    assert child.stdout is not None
    child.kill()
    child.wait()
    with pytest.raises(GrammarError):
        trial.check(Grammar.regex("d*"))
    assert child.stdin.closed  # or every refusal would cost two file descriptors
    assert child.stdout.closed
    trial.check(Grammar.regex("d*"))


def test_the_child_ends_with_its_trial() -> None:
    trial = Trial(FakeTokenizer())
    trial.check(Grammar.regex("e*"))
    child = trial._child
    assert child is not None
    assert child.poll() is None
    del trial
    gc.collect()
    assert child.returncode is not None


def test_the_stand_in_has_all_bytes_and_the_control_tokens() -> None:
    tokens = ByteTokens(300, [7], {"7": "<end>", "5": "<call>"})
    assert tokens.encode("\x05ü") == [6, 197, 190]
    assert tokens.token_bytes(197) == b"\xc3"
    assert tokens.token_text(5) == "<call>"
    assert tokens.control_id("<call>") == 5
    assert ByteTokens(32, [0], {"0": "<end>"}).vocabulary_size == 257
