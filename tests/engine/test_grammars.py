"""Requests with grammars through the engine, on a fake executor that follows them."""

from __future__ import annotations

import re
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from fake_executor import FakeExecutor, solo_output
from fake_model import FakeTokenizer
from heddle.engine.streaming.blocking import Collector
from heddle.errors import EngineClosedError, GrammarError
from heddle.grammars import Grammar
from heddle.outputs import FinishReason
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from heddle.engine import Engine


def params(seed=1, **fields):
    return SamplingParams(seed=seed, **fields)


@pytest.mark.extensions
def test_a_grammar_holds_in_a_batch_and_after_preemption(start) -> None:
    """Outputs match the grammar and equal those of a request that runs alone."""
    chosen = [params(seed, grammar=Grammar.of("regex", "([a-z]{3}-){30}")) for seed in range(6)]
    chosen[3] = params(3, max_tokens=120, ignore_eos=True)
    alone = [start(executor=FakeExecutor(), slots=1).complete("hello", one) for one in chosen]
    executor = FakeExecutor(pages=10)
    crowded = start(executor=executor)
    executor.gate.clear()  # held until all are queued
    collectors = [Collector() for _ in chosen]
    crowded.submit_many(("hello", *one) for one in zip(chosen, collectors, strict=True))
    executor.gate.set()
    outputs = [collector.wait() for collector in collectors]
    assert crowded.snapshot().preemptions > 0
    for index, (output, whole) in enumerate(zip(outputs, alone, strict=True)):
        assert output.tokens == whole.tokens
        if index != 3:
            assert re.fullmatch("([a-z]{3}-){30}", output.text)
            assert output.finish is FinishReason.STOP


@pytest.mark.extensions
def test_a_slot_drops_the_grammar_of_its_previous_request(start) -> None:
    engine = start(slots=1)
    assert engine.complete("hello", params(grammar=Grammar.of("choice", ["tea"]))).text == "tea"
    free = engine.complete("hello", params())
    expected = solo_output(FakeTokenizer().encode("hello"), params(), 512)
    assert [token.token for token in free.tokens] == expected


@pytest.mark.extensions
def test_prepare_compiles_a_grammar_before_its_request(engine: Engine) -> None:
    known = engine.model.tokenizer.grammars.known
    tea = Grammar.of("choice", ["tea"])
    assert known(tea) is None
    assert engine.prepare_grammar(tea) is known(tea)
    assert engine.complete("hello", params(grammar=tea)).text == "tea"


@pytest.mark.slow
def test_a_grammar_that_compiles_for_minutes_is_refused(engine: Engine) -> None:
    patterns = [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{i}}}"} for i in range(40)]
    with pytest.raises(GrammarError, match="more than 3 s or 3 GB"):
        engine.prepare_grammar(Grammar.json_schema({"allOf": patterns}))
    with pytest.raises(GrammarError, match="cannot be served"):
        engine.prepare_grammar(Grammar.of("regex", "("))


@pytest.mark.extensions
def test_a_closed_engine_refuses_to_try_a_grammar(engine: Engine) -> None:
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.prepare_grammar(Grammar.of("regex", "a"))


def test_a_late_mask_delays_only_its_own_request(start) -> None:
    """Other requests continue, a follower too, and the tokens of all are the same."""
    late = Future[None]()
    prompt = FakeTokenizer().encode("hello")
    executor = FakeExecutor(defers=lambda history: None if late.done() else held(history))

    def held(history) -> Future[None] | None:
        return late if len(history) == len(prompt) and list(history) == prompt else None

    engine = start(executor=executor)
    waiting, follower = Collector(), Collector()
    engine.submit("hello", params(3, max_tokens=20, ignore_eos=True), waiting)
    engine.submit("hello you", params(4, max_tokens=20, ignore_eos=True), follower)
    assert len(follower.wait().tokens) == 20
    for seed in range(3):
        assert engine.complete("others", params(seed)).finish is not FinishReason.ERROR
    slot = next(slot for slot in engine.snapshot().slots if slot.request is not None)
    assert slot.generated_tokens == 0
    late.set_result(None)
    alone = solo_output(prompt, params(3, max_tokens=20, ignore_eos=True), 512)
    assert [token.token for token in waiting.wait().tokens] == alone


def test_a_request_can_be_cancelled_and_closed_while_its_mask_is_late(start) -> None:
    never = Future[None]()
    engine = start(executor=FakeExecutor(defers=lambda history: never))
    first, second = Collector(), Collector()
    engine.submit("hello", params(1), first).cancel()
    assert first.wait().finish is FinishReason.CANCELLED
    engine.submit("hello", params(1), second)
    engine.close()
    with pytest.raises(EngineClosedError):
        second.wait()
