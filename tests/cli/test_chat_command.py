"""`heddle chat`: lines in, answers out, one conversation."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import END, FakeExecutor, solo_output
from fake_model import FakeTemplate, FakeTokenizer, fake_model, text_of
from heddle.cli import run
from heddle.cli.chat import Conversation
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.errors import ConfigError
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("loaded")

SEED = SamplingParams(seed=1, max_tokens=12)
OPTIONS = ["chat", "--seed", "1", "--max-tokens", "12"]


def answer_to(messages: list[dict[str, str]], params: SamplingParams = SEED) -> str:
    tokens = solo_output(FakeTokenizer().encode(FakeTemplate().render(messages)), params, 512)
    return text_of(tokens[:-1] if tokens[-1] == END else tokens)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the user types: texts, functions that return one, exceptions to raise.

    After the last comes Ctrl-D.
    """

    def type_in(*lines: Any) -> None:
        left: Iterator[Any] = iter([*lines, EOFError])

        def read(prompt: str = "") -> str:
            line = next(left)
            if isinstance(line, type):
                raise line
            return line() if callable(line) else line

        monkeypatch.setattr("builtins.input", read)

    return type_in


@pytest.fixture
def engine(executor: FakeExecutor) -> Iterator[Engine]:
    with Engine(fake_model(executor), EngineConfig()) as engine:
        yield engine


def test_answers_go_on_from_what_was_said(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("hello", "", "go on")
    assert run(OPTIONS) == 0
    first = answer_to([user("hello")])
    second = answer_to([user("hello"), assistant(first), user("go on")])
    assert capsys.readouterr().out == f"{first}\n{second}\n"


def test_settings_reach_the_engine(
    typed: Callable[..., None],
    loaded: list[tuple[str, EngineConfig]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEDDLE_BATCH_TOKENS", "77")
    monkeypatch.setenv("HEDDLE_KV_CACHE", "64M")
    typed("/exit")
    assert run(["chat", "--kv-cache", "1G"]) == 0
    [(_, config)] = loaded
    assert (config.batch_tokens, config.kv_cache) == (77, 1 << 30)


def test_reset_keeps_the_system_message(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("hello", "/reset", "again", "/exit", "never read")
    assert run([*OPTIONS, "--system", "be brief"]) == 0
    system = {"role": "system", "content": "be brief"}
    expected = [answer_to([system, user("hello")]), answer_to([system, user("again")])]
    assert capsys.readouterr().out == "\n".join(expected) + "\n"


def test_an_unknown_command_is_not_sent(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str], executor: FakeExecutor
) -> None:
    typed("/quit")
    assert run(OPTIONS) == 0
    assert "/quit is not a command" in capsys.readouterr().err
    assert executor.steps == 0


def test_interrupting_stops_the_answer_and_not_the_program(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str], executor: FakeExecutor
) -> None:
    main = threading.main_thread().ident
    assert main is not None
    # A shell that starts the tests in the background has them ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(step: int) -> None:
        if step == 5:
            executor.gate.clear()
            while not sys.stdout.getvalue():  # type: ignore[attr-defined]
                time.sleep(0.001)  # until the answer has begun to be shown
            signal.pthread_kill(main, signal.SIGINT)
            assert executor.gate.wait(60)

    def go_on() -> str:
        executor.gate.set()
        return "go on"

    # Letters of one piece each: half of one, cut off, could not be said again to the fake model.
    params, whole = next(
        (params, whole)
        for params in (SamplingParams(seed=seed, max_tokens=40) for seed in range(1000))
        if len(whole := answer_to([user("hello")], params)) > 10 and whole.isascii()
    )
    executor.before_step = interrupt
    typed("hello", go_on)
    assert run(["chat", "--seed", str(params.seed), "--max-tokens", "40"]) == 0
    shown, after = capsys.readouterr().out.split(" [stopped]\n")
    assert len(shown) <= 5
    # The signal may come between taking a piece and printing it.
    kept = {whole[: len(shown)], whole[: len(shown) + 1]}
    assert shown in kept
    conversations = [[user("hello"), assistant(said), user("go on")] for said in kept]
    assert after in [answer_to(messages, params) + "\n" for messages in conversations]


def test_interrupting_the_prompt_shows_the_way_out(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed(KeyboardInterrupt, "hello")
    assert run(OPTIONS) == 0
    out = capsys.readouterr().out
    assert "/exit" in out
    assert answer_to([user("hello")]) in out


def test_a_conversation_too_long_is_said_and_not_kept(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("hello " * 100, "hello")
    assert run(OPTIONS) == 0
    out, err = capsys.readouterr()
    assert "/reset starts over" in err
    assert out == answer_to([user("hello")]) + "\n"


def test_an_answer_that_fails_does_not_end_the_conversation(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str], executor: FakeExecutor
) -> None:
    def fail_once(history: object) -> bool:
        executor.poisonous = lambda history: False
        return True

    executor.poisonous = fail_once
    typed("hello", "/reset", "hello")
    assert run(OPTIONS) == 0
    out, err = capsys.readouterr()
    assert "NaN" in err
    assert out == answer_to([user("hello")]) + "\n"


def test_an_answer_left_early_is_cancelled_and_kept(engine: Engine) -> None:
    params = SamplingParams(seed=2, max_tokens=400, ignore_eos=True)
    conversation = Conversation(engine, params, None)
    pieces = conversation.answer("hello")
    got = [next(pieces), next(pieces)]
    pieces.close()
    assert conversation.messages == [user("hello"), assistant("".join(got))]
    assert "".join(conversation.answer("go on"))


def test_a_model_without_template_cannot_chat(executor: FakeExecutor) -> None:
    model = fake_model(executor, template=False)
    no_template = pytest.raises(ConfigError, match="no chat template")
    with Engine(model, EngineConfig()) as engine, no_template:
        Conversation(engine, SEED, None)


def test_a_model_cannot_steer_the_terminal(
    typed: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Conversation, "answer", lambda *_: (text for text in ["a\x1b[2Jb\n\tc\x9b"])
    )
    typed("hello")
    assert run(OPTIONS) == 0
    assert capsys.readouterr().out == "a[2Jb\n\tc\n"
