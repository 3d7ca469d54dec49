"""The child process that grammars are tried in."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from fake_model import FakeTokenizer
from heddle.errors import EngineClosedError, GrammarError, GrammarTrialError
from heddle.grammars import Grammar
from heddle.text.constrained import trial as module
from heddle.text.constrained.trial import ByteTokens, Trial, _Child
from patience import PATIENCE
from patterns import regular

if TYPE_CHECKING:
    from subprocess import Popen

ENDLESS = Grammar.json_schema(
    {"allOf": [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{i}}}"} for i in range(40)]},
    "guided_json",
)


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial(FakeTokenizer(), seconds=1)


@pytest.mark.slow
def test_a_slow_grammar_is_refused_and_the_next_one_is_served(trial: Trial) -> None:
    trial.check(regular("a*"))
    with pytest.raises(GrammarError, match="guided_json cannot be served: compiling it") as refusal:
        trial.check(ENDLESS)
    assert refusal.value.param == "guided_json"
    trial.check(regular("b*"))


def test_a_verdict_is_remembered_for_every_parameter_name(trial: Trial, monkeypatch) -> None:
    trial.check(regular("f*"))
    with pytest.raises(GrammarError):
        trial.check(ENDLESS)
    monkeypatch.setattr(_Child, "answer", None)  # no child is asked again
    trial.check(regular("f*", "guided_regex"))
    with pytest.raises(GrammarError, match="output_config cannot be served") as refusal:
        trial.check(replace(ENDLESS, param="output_config"))
    assert refusal.value.param == "output_config"


@pytest.mark.slow
def test_masks_that_take_too_much_work_are_refused() -> None:
    """Compiling 20,000 alternatives is quick; finding the tokens that may come first is not.

    The parser has a limit too, which is named where the child is slow.
    """
    many = Grammar.lark('start: "x"' + ' | "x"' * 20_000, "guided_grammar")
    with pytest.raises(
        GrammarError, match=r"guided_grammar cannot be served: (finding|comp|Parser)"
    ):
        Trial(FakeTokenizer()).check(many)


@pytest.mark.slow
def test_the_trial_follows_the_first_and_the_last_allowed_tokens_to_the_end() -> None:
    """`a` ends at once. The part with too much work comes after `zbcde`."""
    many = "\nmany: " + " | ".join(['"x"'] * 20_000)
    with pytest.raises(GrammarError, match="guided_grammar cannot be served: "):
        Trial(FakeTokenizer()).check(
            Grammar.lark(f'start: "a" | "zbcde" many{many}', "guided_grammar")
        )


def test_a_child_has_little_memory_and_time(trial: Trial) -> None:
    trial.check(regular("k*"))
    if sys.platform == "linux":  # other systems do not show the limits of another process
        limits = partial(resource.prlimit, process_of(trial).pid)
        assert limits(resource.RLIMIT_AS) == (module._MEMORY, module._MEMORY)
        assert 0 < limits(resource.RLIMIT_CPU)[0] < 60
        assert limits(resource.RLIMIT_CORE) == (0, 0)


def test_an_invalid_grammar_passes_the_trial_and_fails_at_compilation(trial: Trial) -> None:
    trial.check(regular("("))
    trial.check(Grammar.lark("start: nowhere"))


def test_a_killed_child_is_replaced(trial: Trial) -> None:
    trial.check(regular("c*"))
    process = process_of(trial)
    assert process.stdin is not None
    assert process.stdout is not None
    process.kill()
    process.wait()
    trial.check(regular("d*"))
    assert process_of(trial) is not process
    assert process.stdin.closed  # otherwise every refusal would leak two file descriptors
    assert process.stdout.closed


def test_a_grammar_on_trial_does_not_delay_others(trial: Trial) -> None:
    busy = trial._free.get()  # as if another thread used the child
    trial.check(regular("g*"))
    trial._free.put(busy)


def test_a_lower_address_space_limit_of_the_parent_is_kept() -> None:
    """A child cannot raise an inherited limit. It ended, and the error blamed the grammar."""
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({2 << 30}, {2 << 30}))
from fake_model import FakeTokenizer
from heddle.text.constrained.trial import Trial
from patterns import regular
Trial(FakeTokenizer()).check(regular("a*"))
"""
    path = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": path}
    )


def test_a_child_that_cannot_start_is_not_reported_as_a_grammar_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = Trial(FakeTokenizer())
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")
        with pytest.raises(GrammarTrialError, match="does not start: it ended with status 1"):
            trial.check(regular("a*"))
        broken.setattr(sys, "executable", "/nowhere")
        with pytest.raises(GrammarTrialError, match="does not start: No such file"):
            trial.check(regular("a*"))
    trial.check(regular("a*"))


def test_the_children_end_with_their_trial() -> None:
    trial = Trial(FakeTokenizer())
    trial.check(regular("e*"))
    process = process_of(trial)
    assert process.poll() is None
    del trial
    gc.collect()
    assert process.returncode is not None


def test_closing_ends_a_running_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a stopping server would wait 3 s for each grammar on trial."""
    trial = Trial(FakeTokenizer())
    trial.check(regular("h*"))
    process = process_of(trial)
    process.send_signal(signal.SIGSTOP)  # the child never answers
    asked, asks = threading.Event(), module._ask

    def ask(child: Popen[bytes], question: object) -> str | None:
        asked.set()
        return asks(child, question)

    monkeypatch.setattr(module, "_ask", ask)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(trial.check, regular("i*"))
        try:
            assert asked.wait(PATIENCE)
            trial.close()
            with pytest.raises(EngineClosedError):
                running.result(PATIENCE)
        finally:
            process.kill()
    with pytest.raises(EngineClosedError):
        trial.check(regular("h*"))  # although its verdict is known


def test_closing_ends_a_child_that_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(FakeTokenizer())
    starts = subprocess.Popen.__init__

    def close_and_start(process: Popen[bytes], *command: object, **options: object) -> None:
        trial.close()
        starts(process, *command, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess.Popen, "__init__", close_and_start)
    with pytest.raises(EngineClosedError):
        trial.check(regular("j*"))


def test_a_stopped_child_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped child uses no processor time: the request waited for ever, and held the child."""
    trial = Trial(FakeTokenizer(), children=1)
    trial.check(regular("k*"))
    process = process_of(trial)
    process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as short:
        short.setattr(module, "_LONGEST_WAIT", 0.1)
        running = pool.submit(trial.check, regular("l" * 100_000))  # more than a pipe holds
        try:
            with pytest.raises(GrammarTrialError, match=r"did not answer in 0\.1 s"):
                running.result(PATIENCE)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    trial.check(regular("m*"))


def process_of(trial: Trial) -> Popen[bytes]:
    """The process of the child that answered last."""
    process = trial._free.queue[-1]._process
    assert process is not None
    return process


def test_the_substitute_tokenizer_has_all_bytes_and_the_control_tokens() -> None:
    tokens = ByteTokens(300, [7], {"7": "<end>", "5": "<call>"})
    assert tokens.encode("\x05ü") == [6, 197, 190]
    assert tokens.token_bytes(197) == b"\xc3"
    assert tokens.token_text(5) == "<call>"
    assert tokens.control_id("<call>") == 5
    assert ByteTokens(32, [0], {"0": "<end>"}).vocabulary_size == 257
