"""Driven sequences: tokens one by one, trims, snapshots, cancelling, and shared steps."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_executor import END, VOCABULARY, FakeExecutor, next_token
from fake_model import fake_model
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.errors import (
    ConfigError,
    ContextLengthError,
    EngineClosedError,
    InvalidRequestError,
    NonFiniteLogitsError,
)
from heddle.grammars import Grammar
from heddle.sampling_params import SamplingParams
from heddle.scheduler.sequence import SlotState

if TYPE_CHECKING:
    from heddle.engine.driven import DrivenSequence
    from heddle.engine.requests.request import Request

PROMPT = [8, 5, 12, 12, 15]


def params(seed: int = 1, **fields: Any) -> SamplingParams:
    return SamplingParams(seed=seed, **fields)


def expected(history: list[int], count: int, seed: int = 1, **fields: Any) -> list[int]:
    """The tokens after the history; end tokens do not end them."""
    chosen = params(seed, logprobs=0, **fields)
    tokens = list(history)
    for _ in range(count):
        tokens.append(next_token(tokens, chosen))
    return tokens[len(history) :]


def take(sequence: DrivenSequence, count: int) -> list[int]:
    return [sequence.sample_next().token for _ in range(count)]


# --- tokens --------------------------------------------------------------------------------------


def test_decode_prompt_returns_the_first_token_and_sample_next_the_others(engine: Engine) -> None:
    sequence = engine.create_sequence(params())
    tokens = [sequence.decode_prompt(PROMPT).token]
    assert sequence.position == 6
    tokens += take(sequence, 40)
    assert tokens == expected(PROMPT, 41)
    assert sequence.position == 46
    [slot] = [slot for slot in engine.snapshot().slots if slot.request is not None]
    assert (slot.state, slot.generated_tokens) == (SlotState.PAUSED, 41)


def test_a_driven_sequence_computes_only_requested_tokens(engine: Engine, executor) -> None:
    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    take(sequence, 3)
    assert engine.complete("abc", params(max_tokens=1)).tokens
    assert executor.plans == [[(0, 0, 5)], [(0, 5, 1)], [(0, 6, 1)], [(0, 7, 1)], [(1, 0, 3)]]


def test_sampling_can_continue_after_an_end_token(engine: Engine) -> None:
    seed = next(seed for seed in range(999) if expected(PROMPT, 2, seed)[1] == END)
    sequence = engine.create_sequence(params(seed))
    assert not sequence.decode_prompt(PROMPT).is_eos
    end = sequence.sample_next()
    assert (end.token, end.is_eos, end.text) == (END, True, "")
    assert sequence.sample_next().token == expected(PROMPT, 3, seed)[2]


def test_text_is_returned_in_whole_characters(engine: Engine, monkeypatch) -> None:
    pieces = {token: b"\xc3" if token % 2 else b"\xa9" for token in range(VOCABULARY)}
    monkeypatch.setattr(engine.model.tokenizer, "token_bytes", pieces.__getitem__)
    sequence = engine.create_sequence(params())
    results = [sequence.decode_prompt(PROMPT)] + [sequence.sample_next() for _ in range(20)]
    raw = b"".join(pieces[token] for token in PROMPT[-8:])
    shown = len(raw.decode(errors="replace")) - raw.endswith(b"\xc3")
    raw += b"".join(pieces[result.token] for result in results)
    text = raw.decode(errors="replace")
    text = text[:-1] if raw.endswith(b"\xc3") else text
    assert "".join(result.text for result in results) == text[shown:]
    for keep in range(25, 5, -1):
        sequence.trim(keep)
        assert sequence.sample_next() == results[keep - 5]


def test_a_character_of_four_tokens_is_returned_whole(engine: Engine, monkeypatch) -> None:
    """The prompt has three of the tokens, so the text needs bytes before the new token."""
    prompt = [1, 2, 3]
    seed = next(seed for seed in range(100) if expected(prompt, 1, seed)[0] not in prompt)
    first, second, third, last = (bytes([byte]) for byte in "\N{SPOOL OF THREAD}".encode())
    pieces = {1: first, 2: second, 3: third}
    monkeypatch.setattr(
        engine.model.tokenizer, "token_bytes", lambda token: pieces.get(token, last)
    )
    sequence = engine.create_sequence(params(seed))
    assert sequence.decode_prompt(prompt).text == "\N{SPOOL OF THREAD}"


def test_a_trim_does_not_change_the_text_after_it(engine: Engine) -> None:
    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    results = [sequence.sample_next() for _ in range(30)]
    for keep in (35, 20, 7):
        sequence.trim(keep)
        assert sequence.sample_next() == results[keep - 6]


def test_single_line_ends_at_a_line_end(engine: Engine, monkeypatch) -> None:
    pieces = {token: b"a\r\nb" if token % 4 == 0 else b"c" for token in range(VOCABULARY)}
    monkeypatch.setattr(engine.model.tokenizer, "token_bytes", pieces.__getitem__)
    sequence = engine.create_sequence(params(), single_line=True)
    results = [sequence.decode_prompt(PROMPT)] + [sequence.sample_next() for _ in range(20)]
    for result in results:
        assert result.is_eos == (result.token % 4 == 0)
        assert result.text == ("a" if result.is_eos else "c")
    assert any(result.is_eos for result in results)


def test_line_ends_can_be_masked(engine: Engine, monkeypatch) -> None:
    pieces = {token: b"a\r\nb" if token % 4 == 0 else b"c" for token in range(VOCABULARY)}
    monkeypatch.setattr(engine.model.tokenizer, "token_bytes", pieces.__getitem__)
    sequence = engine.create_sequence(params(), single_line="mask")
    results = [sequence.decode_prompt(PROMPT)] + [sequence.sample_next() for _ in range(20)]
    chosen, history = params(logprobs=0), list(PROMPT)
    for result in results:
        assert (result.text, result.is_eos) == ("c", False)
        assert result.token == next_token(history, chosen, range(0, VOCABULARY, 4))
        history.append(result.token)


def test_tokens_without_text_are_sampled_only_if_a_bias_names_them(engine, monkeypatch) -> None:
    pieces = {token: b"" if token in (END, 5, 6, 7) else b"c" for token in range(VOCABULARY)}
    monkeypatch.setattr(engine.model.tokenizer, "token_bytes", pieces.__getitem__)
    sampled = set()
    for seed in range(9):
        sequence = engine.create_sequence(params(seed, logit_bias={6: 0.0}))
        sequence.decode_prompt(PROMPT)
        sampled |= {sequence.sample_next().token for _ in range(40)}
    assert sampled == set(range(VOCABULARY)) - {5, 7}


def test_a_driven_sequence_draws_its_seed_once(engine: Engine) -> None:
    sequence = engine.create_sequence()
    first = [sequence.decode_prompt(PROMPT).token, *take(sequence, 5)]
    assert [sequence.decode_prompt(PROMPT).token, *take(sequence, 5)] == first


# --- words ---------------------------------------------------------------------------------------


def test_a_forced_word_continuation_holds_for_one_token(engine: Engine) -> None:
    not_letters = (0, 27, 28, 29, 30, 31)
    for seed in range(40):
        sequence = engine.create_sequence(params(seed))
        sequence.force_word_continuation()
        chosen = params(seed, logprobs=0)
        first = next_token(PROMPT, chosen, not_letters)
        assert sequence.decode_prompt(PROMPT).token == first
        history = [*PROMPT, first]
        assert take(sequence, 1) == [next_token(history, chosen)]
        sequence.trim(6)
        sequence.force_word_continuation()
        assert take(sequence, 1) == [next_token(history, chosen, not_letters)]


def test_a_forced_word_continuation_survives_a_cancel(engine: Engine) -> None:
    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    sequence.force_word_continuation()
    sequence.cancel()
    assert sequence.sample_next().was_cancelled
    sequence.trim(6)
    history = [*PROMPT, *expected(PROMPT, 1)]
    forced = next_token(history, params(logprobs=0), (0, 27, 28, 29, 30, 31))
    assert take(sequence, 1) == [forced]


HEALED = {0: b"", 1: b"re", 2: b"tu", 3: b"rn", 4: b"return", 5: b"ret", 6: b"r", 7: b" x",
          8: b"u", 9: b"returns"}  # fmt: skip


def test_a_prompt_that_ends_inside_a_token_is_healed(engine: Engine, monkeypatch) -> None:
    pieces = dict.fromkeys(range(VOCABULARY), b"-") | HEALED
    monkeypatch.setattr(engine.model.tokenizer, "token_bytes", pieces.__getitem__)
    seen = set()
    for seed in range(60):
        sequence = engine.create_sequence(params(seed))
        result = sequence.decode_prompt([7, 1, 2], heal=True)
        tokens = sequence.snapshot().tokens
        text = b"".join(pieces[token] for token in tokens).decode()
        assert text == " xretu" + result.text
        assert result.text or result.token == 0
        assert tokens[-1] == result.token
        seen.add(tokens[1:])
        assert sequence.sample_next().token == expected(list(tokens), 1, seed)[0]
    assert {(4,), (9,)} < seen
    assert any(tokens[:2] == (1, 2) for tokens in seen)


def test_a_line_end_in_the_prompt_does_not_end_a_single_line(engine, monkeypatch) -> None:
    pieces = dict.fromkeys(range(VOCABULARY), b"-") | {1: b"\n", 2: b"\n  "}
    monkeypatch.setattr(engine.model.tokenizer, "token_bytes", pieces.__getitem__)
    sequence = engine.create_sequence(params(), single_line=True)
    for seed in range(20):
        sequence = engine.create_sequence(params(seed), single_line=True)
        result = sequence.decode_prompt([5, 1], heal=True)
        assert result.is_eos == (result.token in (0, 1, 2) and result.text != "  ")


def test_a_masked_line_end_in_the_prompt_can_be_healed(engine: Engine, monkeypatch) -> None:
    pieces = dict.fromkeys(range(VOCABULARY), b"-") | {1: b"\n", 2: b"\n  ", 3: b"\n\n", 4: b"\r"}
    monkeypatch.setattr(engine.model.tokenizer, "token_bytes", pieces.__getitem__)
    found = set()
    for seed in range(20):
        sequence = engine.create_sequence(params(seed), single_line="mask")
        texts = [sequence.decode_prompt([5, 1], heal=True).text, sequence.sample_next().text]
        found.add(texts[0])
        assert not any("\n" in text or "\r" in text for text in texts)
    assert found == {"-", "  "}


def test_a_word_goes_on_behind_a_mark(engine: Engine, monkeypatch) -> None:
    pieces = dict.fromkeys(range(VOCABULARY), b"(") | {1: b"-", 2: b"a", 3: b"'s", 4: b"'("}
    monkeypatch.setattr(engine.model.tokenizer, "token_bytes", pieces.__getitem__)
    found = set()
    for seed in range(60):
        sequence = engine.create_sequence(params(seed))
        sequence.force_word_continuation(marks="'-")
        first, second = sequence.decode_prompt(PROMPT).token, sequence.sample_next().token
        assert first in (1, 2, 3)
        assert first != 1 or second == 2
        found.add((first, second))
    assert {first for first, _ in found} == {1, 2, 3}
    assert any(first == 2 and second > 4 for first, second in found)


# --- changes -------------------------------------------------------------------------------------


def test_decode_prompt_can_start_at_any_position(engine: Engine) -> None:
    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    take(sequence, 4)
    kept = PROMPT + expected(PROMPT, 2)
    result = sequence.decode_prompt([3, 4], start=7)
    assert [result.token] == expected([*kept, 3, 4], 1)
    assert sequence.position == 10


def test_a_trim_frees_pages_and_computes_one_token_again(start, executor) -> None:
    engine = start(batch_tokens=512)
    sequence = engine.create_sequence(params())
    prompt = [token % 31 + 1 for token in range(200)]
    sequence.decode_prompt(prompt)
    take(sequence, 10)
    executor.plans.clear()
    sequence.trim(70)
    assert sequence.sample_next().token == next_token(prompt[:70], params(logprobs=0))
    assert executor.plans == [[(0, 69, 1)]]
    assert engine.snapshot().pages_used == 3


class Ends:
    """An observer that waits for the end of a request."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def on_finish(self, *_: object) -> None:
        self.ended.set()

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_a_trim_frees_pages_before_the_next_call(engine: Engine) -> None:
    ends = Ends()
    engine.thread.observe(ends)
    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    assert engine.snapshot().pages_used == 1
    sequence.trim(3)
    assert ends.ended.wait(60)
    assert engine.snapshot().pages_used == 0


def test_published_pages_are_not_overwritten_after_a_trim(engine: Engine) -> None:
    first, second = engine.create_sequence(params()), engine.create_sequence(params())
    prompt = [token % 31 + 1 for token in range(40)]
    first.decode_prompt(prompt)
    first.trim(36)
    first.decode_prompt([1, 2, 3], start=36)
    second.decode_prompt(prompt)
    assert take(second, 9) == expected(prompt, 10)[1:]
    assert take(first, 9) == expected([*prompt[:36], 1, 2, 3], 10)[1:]


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("mirostat", [0, 2])
def test_restoring_a_snapshot_gives_the_same_tokens(start, prefix_cache, mirostat) -> None:
    engine = start(prefix_cache=prefix_cache)
    chosen = params(mirostat=mirostat)
    sequence, other = engine.create_sequence(chosen), engine.create_sequence(chosen)
    sequence.decode_prompt(PROMPT)
    take(sequence, 3)
    state = sequence.snapshot()
    tokens = take(sequence, 50)
    assert tokens == expected(PROMPT, 54, mirostat=mirostat)[4:]
    sequence.restore(state)
    assert sequence.position == 9
    assert take(sequence, 50) == tokens
    other.restore(state)
    assert take(other, 50) == tokens
    assert sequence.snapshot() == other.snapshot()
    sequence.trim(30)
    assert take(sequence, 20) == tokens[21:41]


class Model:
    """A simple model of a driven sequence."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def sample(self) -> int:
        self.tokens.append(next_token(self.tokens, params(logprobs=0)))
        return self.tokens[-1]


OPERATIONS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["sample"] * 4 + ["trim", "prompt", "swap"]),
              st.floats(0, 1), st.integers(1, 50)),
    max_size=60,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, st.integers(1, 3), st.booleans())
def test_sequences_that_compete_for_pages_get_the_same_tokens_as_alone(
    operations, slots, prefix_cache
) -> None:
    executor = FakeExecutor(pages=8)
    config = EngineConfig(slots=slots, prefix_cache=prefix_cache)
    with Engine(fake_model(executor, context=256), config) as engine:
        sequences = [engine.create_sequence(params()) for _ in range(3)]
        models = [Model() for _ in range(3)]
        states = [(sequence.snapshot(), []) for sequence in sequences]
        for index, what, where, length in operations:
            sequence, model = sequences[index], models[index]
            at = int(where * len(model.tokens))
            if what == "trim":
                sequence.trim(at)
                del model.tokens[at:]
            elif what == "swap":
                now = (sequence.snapshot(), list(model.tokens))
                sequence.restore(states[index][0])
                model.tokens = list(states[index][1])
                states[index] = now
            elif what == "prompt" or not model.tokens:
                added = [(token * length) % 31 + 1 for token in range(length)]
                if at + length < 255:
                    model.tokens = model.tokens[:at] + added
                    assert sequence.decode_prompt(added, start=at).token == model.sample()
            elif len(model.tokens) < 255:
                assert sequence.sample_next().token == model.sample()
            assert sequence.position == len(model.tokens)


def test_idle_sequences_give_way_to_requests_and_resume(start, executor) -> None:
    engine = start(slots=2)
    sequences = [engine.create_sequence(params(seed)) for seed in range(5)]
    for sequence in sequences:
        sequence.decode_prompt(PROMPT)
    assert engine.complete("abc", params(max_tokens=30, ignore_eos=True)).usage.completion_tokens
    for seed, sequence in enumerate(sequences):
        assert take(sequence, 9) == expected(PROMPT, 10, seed)[1:]
    assert engine.snapshot().preemptions >= 4


def test_idle_sequences_do_not_fill_the_queue(start) -> None:
    engine = start(slots=1, queue=0)
    sequences = [engine.create_sequence(params()) for _ in range(5)]
    for sequence in sequences:
        sequence.decode_prompt(PROMPT)
    assert take(sequences[0], 1) == expected(PROMPT, 2)[1:]


def test_dropping_a_sequence_frees_its_slot(engine: Engine) -> None:
    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    del sequence
    engine.complete("abc", params(max_tokens=1))
    engine.complete("abc", params(max_tokens=1))
    assert engine.snapshot().running == 0


# --- cancelling ----------------------------------------------------------------------------------


def test_cancel_returns_at_once_and_lasts_until_the_tokens_change(engine, executor) -> None:
    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    executor.entered.clear()
    executor.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sequence.sample_next)
        assert executor.entered.wait(60)
        sequence.cancel()
        result = waiting.result(60)  # while the step is still held
        assert (result.was_cancelled, result.token, result.text) == (True, -1, "")
        assert math.isnan(result.logprob)
        assert sequence.sample_next().was_cancelled
        assert sequence.position == 6
        executor.gate.set()
    sequence.trim(6)
    assert take(sequence, 20) == expected(PROMPT, 21)[1:]


def test_cancel_without_a_waiting_call_computes_nothing(engine, executor) -> None:
    sequence = engine.create_sequence(params())
    sequence.cancel()
    assert sequence.sample_next().was_cancelled
    assert [sequence.decode_prompt(PROMPT).token] == expected(PROMPT, 1)
    steps = executor.steps
    sequence.cancel()
    sequence.cancel()
    assert sequence.sample_next().was_cancelled
    assert executor.steps == steps
    assert [sequence.decode_prompt([7]).token] == expected([7], 1)


# --- company -------------------------------------------------------------------------------------


def test_a_token_requested_before_an_interrupt_is_not_returned_later(
    engine: Engine, monkeypatch
) -> None:
    def wait(request: Request) -> None:
        while not request.sequence.paused:  # until the token is there
            time.sleep(0)

    def interrupted(request: Request) -> None:
        resume(request)
        wait(request)
        raise KeyboardInterrupt

    sequence, resume = engine.create_sequence(params()), engine.thread.resume
    sequence.decode_prompt(PROMPT)
    with monkeypatch.context() as context:
        context.setattr(engine.thread, "resume", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sequence.sample_next()
    assert take(sequence, 1) == expected(PROMPT, 2)[1:]
    wait(sequence._active.request)
    assert sequence._active.request.sequence.total == sequence.position


@pytest.mark.parametrize("running", [False, True])
def test_callers_that_ask_together_share_a_step(start, executor, running: bool) -> None:
    window = 1_000_000  # long enough that every step waits for all callers
    engine = start(batch_window_us=0 if running else window)
    if running:
        engine.set_batch_window(window)
        assert engine.config.batch_window_us == window
    count, length = 4, 50
    executor.gate.clear()
    alone = threading.Thread(target=engine.complete, args=("a", params(max_tokens=1)))
    alone.start()
    assert executor.entered.wait(60)  # all prompts arrive while this step is held

    def drive(_: int) -> list[int]:
        sequence = engine.create_sequence(params())
        return [sequence.decode_prompt(PROMPT).token, *take(sequence, length)]

    with ThreadPoolExecutor(count) as pool:
        outputs = pool.map(drive, range(count))
        while engine.snapshot().queue_depth < count:
            time.sleep(0.001)  # lets the callers arrive
        executor.gate.set()
        assert list(outputs) == [expected(PROMPT, length + 1)] * count
    alone.join(60)
    together = [plan for plan in executor.plans if len(plan) == count]
    assert len(together) >= length - count  # the other callers follow the first one's prompt


def test_a_batch_window_that_cannot_be_is_refused(start) -> None:
    engine = start()
    with pytest.raises(ConfigError, match="batch_window_us must be at least 0"):
        engine.set_batch_window(-1)
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.set_batch_window(1)
    assert engine.config.batch_window_us == EngineConfig().batch_window_us


def test_a_step_waits_only_once_for_an_absent_caller(start, executor) -> None:
    engine = start(batch_window_us=1)
    away, busy = engine.create_sequence(params()), engine.create_sequence(params(2))
    away.decode_prompt(PROMPT)
    assert [busy.decode_prompt(PROMPT).token, *take(busy, 20)] == expected(PROMPT, 21, 2)
    assert engine.thread._loop._last_driven == [busy._active.request.sequence]


def test_a_step_does_not_wait_for_a_cancelled_caller(start, monkeypatch) -> None:
    engine = start(batch_window_us=1_000_000)
    thread, timeouts = engine.thread, []
    wait = thread._loop.wakeup.wait

    def watched(timeout: float | None = None) -> None:
        timeouts.append(timeout)
        wait(timeout)

    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    while not thread._loop._last_driven:
        time.sleep(0.001)  # lets the engine end the step
    monkeypatch.setattr(thread._loop.wakeup, "wait", watched)
    sequence.cancel()
    engine.complete("hello", params(max_tokens=3))
    assert set(timeouts) <= {None}, "the engine only waited for work"


def test_streams_continue_beside_a_driven_sequence(engine: Engine) -> None:
    chosen = params(3, max_tokens=60, ignore_eos=True)
    stream = engine.stream("abc", chosen)
    sequence = engine.create_sequence(params())
    assert [sequence.decode_prompt(PROMPT).token, *take(sequence, 30)] == expected(PROMPT, 31)
    tokens = [token.token for delta in stream for token in delta.tokens]
    with Engine(fake_model(FakeExecutor()), EngineConfig()) as other:
        assert tokens == [token.token for token in other.complete("abc", chosen).tokens]


# --- refusals and failures -----------------------------------------------------------------------


@pytest.mark.extensions
def test_parameters_without_meaning_for_a_driven_sequence_are_refused(engine: Engine) -> None:
    for wrong in (
        params(max_tokens=5),
        params(stop=("x",)),
        params(stop_token_ids=(3,)),
        params(grammar=Grammar.of("regex", "a")),
        params(shown_specials=("<end>",)),
    ):
        with pytest.raises(InvalidRequestError, match="leave it out and") as refusal:
            engine.create_sequence(wrong)
        assert refusal.value.param is not None
        default = getattr(SamplingParams(), refusal.value.param)
        assert getattr(wrong, refusal.value.param) != default


def test_invalid_positions_and_tokens_change_nothing(start) -> None:
    sequence = start(context=64).create_sequence(params())
    with pytest.raises(InvalidRequestError, match="call decode_prompt first"):
        sequence.sample_next()
    first = sequence.decode_prompt(PROMPT).token
    for call, param in (
        (lambda: sequence.trim(7), "keep"),
        (lambda: sequence.trim(-1), "keep"),
        (lambda: sequence.decode_prompt([1], start=7), "start"),
        (lambda: sequence.decode_prompt([], start=6), "tokens"),
        (lambda: sequence.decode_prompt([VOCABULARY], start=6), "tokens"),
        (lambda: sequence.decode_prompt("text"), "tokens"),
        (lambda: sequence.decode_prompt([1] * 58, start=6), "prompt"),
    ):
        with pytest.raises(InvalidRequestError) as refusal:
            call()
        assert refusal.value.param == param
    assert [first, *take(sequence, 58)] == expected(PROMPT, 59)
    assert sequence.position == 64
    with pytest.raises(ContextLengthError, match="64"):
        sequence.sample_next()
    sequence.trim(60)
    assert take(sequence, 1) == expected(PROMPT, 56)[55:]


def test_a_driven_sequence_survives_a_failed_token(engine, executor) -> None:
    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    executor.poisonous = lambda history: len(history) == 8
    take(sequence, 2)
    with pytest.raises(NonFiniteLogitsError):
        sequence.sample_next()
    assert sequence.position == 8
    executor.poisonous = lambda history: False
    assert take(sequence, 5) == expected(PROMPT, 8)[3:]


@pytest.mark.parametrize("drain", [False, True])
def test_close_does_not_wait_for_callers_that_ask_for_no_token(engine: Engine, drain: bool) -> None:
    sequences = [engine.create_sequence(params(seed)) for seed in range(2)]
    for sequence in sequences:
        sequence.decode_prompt(PROMPT)
        sequence.sample_next()
    engine.close(drain=drain)
    for sequence in sequences:
        with pytest.raises(EngineClosedError):
            sequence.sample_next()


def test_a_closed_engine_samples_nothing(engine: Engine) -> None:
    sequence = engine.create_sequence(params())
    sequence.decode_prompt(PROMPT)
    engine.close()
    for _ in range(2):
        with pytest.raises(EngineClosedError):
            sequence.sample_next()
    sequence.cancel()
    assert sequence.sample_next().was_cancelled
