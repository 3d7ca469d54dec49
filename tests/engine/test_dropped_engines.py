"""An engine that its owner drops without closing frees its memory and threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import FakeExecutor, solo_output
from fake_model import FakeTokenizer, fake_model, text_of
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.engine.llm import LLM
from heddle.executors.cpu.executor import CpuExecutor
from heddle.sampling_params import SamplingParams
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(seed=1, ignore_eos=True, **({"max_tokens": 4} | fields))


def an_engine(executor: FakeExecutor) -> Engine:
    engine = Engine(fake_model(executor), EngineConfig())
    engine.complete("hello", params())
    return engine


def an_llm(executor: FakeExecutor) -> LLM:
    llm = LLM(Engine(fake_model(executor), EngineConfig()))
    llm.generate(["hello", "world"], params())
    return llm


def a_driven_sequence(executor: FakeExecutor) -> Any:
    sequence = an_engine(executor).create_sequence(SamplingParams(seed=1))
    sequence.decode_prompt([8, 5])
    gc.collect()
    sequence.sample_next()  # only the sequence refers to its engine
    return sequence


def engine_threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "heddle-engine"}


@pytest.mark.parametrize("make", [an_engine, an_llm, a_driven_sequence])
def test_a_dropped_engine_leaves_no_threads_or_objects(make: Callable[[FakeExecutor], Any]) -> None:
    executor = FakeExecutor()
    before = engine_threads()
    owner = make(executor)
    (thread,) = engine_threads() - before
    del owner
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert executor.closed


def test_a_dropped_engine_finishes_accepted_requests() -> None:
    executor = FakeExecutor()
    executor.gate.clear()
    stream = Engine(fake_model(executor), EngineConfig()).stream("hello", params(max_tokens=30))
    gc.collect()
    executor.gate.set()
    said = solo_output(FakeTokenizer().encode("hello"), params(max_tokens=30), 512)
    assert "".join(delta.text for delta in stream) == text_of(said)


def test_garbage_collection_may_run_while_the_lock_is_held() -> None:
    """Also in the engine thread: a finalizer that waits for the lock would never return."""
    executor = FakeExecutor()
    engine = an_engine(executor)
    thread = engine.thread._thread
    with engine.thread._lock:
        del engine
        gc.collect()
        assert thread.is_alive()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def tasks() -> int:
    """Threads of this process, native ones too."""
    return len(list(Path("/proc/self/task").iterdir()))


def executors() -> int:
    return sum(isinstance(one, CpuExecutor) for one in gc.get_objects())


@pytest.mark.model
def test_a_dropped_engine_frees_native_threads_and_executors(model_path: Path) -> None:
    config = EngineConfig(slots=1, context=256, threads=4)
    one = SamplingParams(max_tokens=1)
    with LLM(str(model_path), config) as llm:  # libraries start their own threads only once
        llm.generate(["hello"], one)
    del llm
    gc.collect()
    before, alive = tasks(), executors()
    for _ in range(2):
        LLM(str(model_path), config).generate(["hello"], one)
    deadline = time.monotonic() + PATIENCE
    while (tasks(), executors()) != (before, alive):
        assert time.monotonic() < deadline, f"{tasks() - before} threads are left"
        gc.collect()


def test_a_program_can_end_without_closing_its_engine() -> None:
    """The engine's thread has ended before exit handlers run that were registered earlier."""
    code = (
        "import atexit, threading\n"
        "atexit.register(lambda: print([one.name for one in threading.enumerate()]))\n"
        "from fake_executor import FakeExecutor; from fake_model import fake_model\n"
        "from heddle import EngineConfig, SamplingParams\n"
        "from heddle.engine import Engine\n"
        "engine = Engine(fake_model(FakeExecutor()), EngineConfig())\n"
        "stream = engine.stream('hello', SamplingParams(ignore_eos=True, seed=1))\n"
        "print(next(stream).finish)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("None\n['MainThread']\n", "")
