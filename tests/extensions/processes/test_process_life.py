"""The life of a device's process: loads that fail, a process that is killed or silent, the end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from configs import configured
from devices import HERE
from executors.tiny_files import tiny_file
from fake_executor import MEMORY, FakeExecutor
from heddle.config import RegistryConfig
from heddle.engine.engine import Engine
from heddle.errors import (
    ConfigError,
    EngineClosedError,
    EngineFailedError,
    HeddleError,
    ModelFileError,
    ModelPoisonedError,
    OutOfMemoryError,
    StepAbandonedError,
    UnsupportedModelError,
)
from heddle.executors.devices import devices, loader
from heddle.extensions.processes import child
from heddle.extensions.processes.children import process as children
from heddle.extensions.processes.executor import ProcessExecutor
from heddle.hosting.registry import Registry
from heddle.process_memory import machine_memory
from heddle.sampling_params import SamplingParams
from heddle.step import Binding, Chunk, StepPlan
from live_server import live_server
from models.tiny import llama, qwen3
from patience import PATIENCE
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.weights.checkpoint import Checkpoint

HOST = "heddle.extensions.processes.load:load_in_process"
SHORT = SamplingParams(temperature=0, max_tokens=6, logprobs=1, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=60_000, ignore_eos=True)
CONFIG = configured(slots=2, kv_cache=1 << 24, threads=1, rank_timeout=30)


@pytest.fixture(params=[name for name in ("cpu", "torch") if name in HERE])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device that runs in a process of its own."""
    name: str = request.param
    monkeypatch.setitem(devices(), name, replace(devices()[name], host=HOST))
    return name


pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return replace(llama.PLAIN, context=1 << 16).write_folder(tmp_path / "tiny")


@pytest.fixture
def load(device: str, model: Path) -> Callable[..., Engine]:
    return lambda **settings: Engine.load(model, configured(CONFIG, device=device, **settings))


def one_token() -> StepPlan:
    binding = Binding(0, replace(SHORT, seed=0), [1, 2], [])
    return StepPlan((binding,), (Chunk(0, 0, [1, 2], [0], True),))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)  # lets others run


def refusal(load: Callable[[], object]) -> tuple[Any, ...]:
    with pytest.raises(HeddleError) as raised:
        load()
    error = raised.value
    vars(error).pop("__notes__", None)  # where it was raised in the process
    return type(error), error.message, error.param, error.retry_after, vars(error)


def test_errors_of_a_load_arrive_as_they_are(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types, texts and attributes are those of a load without a process."""
    plain = llama.PLAIN.checkpoint(tmp_path)
    for name in ("broken", "strange"):
        (tmp_path / name).mkdir()
    broken = tiny_file(tmp_path / "broken", tensors={"blk.0.attn_q.weight": None})
    strange = tiny_file(tmp_path / "strange", {"llama.rope.scaling.type": "strange"})
    cases: list[tuple[Checkpoint, dict[str, Any]]] = [
        (broken, {}),
        (strange, {}),
        (plain, {"kv_cache": 5}),
        (plain, {"context": 1 << 20}),
        (plain, {"model_memory": 1000}),
    ]
    found = {}
    for own in (True, False):
        monkeypatch.setitem(devices(), device, replace(devices()[device], host=HOST if own else ""))
        found[own] = [
            refusal(partial(loader(device), file, replace(CONFIG, device=device, **more)))
            for file, more in cases
        ]
    assert found[True] == found[False]
    expected: list[type[HeddleError]] = [
        ModelFileError,
        UnsupportedModelError,
        ConfigError,
        ConfigError,
        OutOfMemoryError,
    ]
    assert [kind for kind, *_ in found[True]] == expected


def test_a_process_that_is_killed_while_it_loads_is_named(device, model, processes, monkeypatch):
    greet = children.ChildProcess.greet

    def kill(self: children.ChildProcess) -> None:
        greet(self)
        processes[0].kill()

    monkeypatch.setattr(children.ChildProcess, "greet", kill)
    with pytest.raises(EngineFailedError, match=r"\(process \d+\) was killed by signal 9"):
        Engine.load(model, replace(CONFIG, device=device))


def test_a_process_of_another_version_is_refused(device, model, monkeypatch) -> None:
    monkeypatch.setattr(children, "program_version", lambda: {"heddle": "0"})
    with pytest.raises(EngineFailedError, match=r"runs \{.*\}, and its parent \{'heddle': '0'"):
        Engine.load(model, replace(CONFIG, device=device))


def test_the_load_shows_its_progress(device: str, model: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    executor = loader(device)(
        llama.PLAIN.checkpoint(tmp_path), replace(CONFIG, device=device), seen.append
    )
    assert isinstance(executor, ProcessExecutor)
    assert seen
    assert seen == sorted(seen)
    assert seen[-1] > 0
    executor.close()


def test_a_killed_process_poisons_the_model_and_a_new_load_serves_again(load, processes, device):
    engine = load()
    expected = engine.complete([1, 2, 3], SHORT).tokens
    running = engine.stream([1, 2, 3], LONG)
    next(running)
    processes[0].kill()
    reason = rf"process of device {device} \(process \d+\) was killed by signal 9 \(SIGKILL\)"
    with pytest.raises(EngineFailedError, match=reason):
        list(running)
    assert engine.health.poison is not None
    assert "was killed by signal 9" in engine.health.poison.reason
    with pytest.raises(ModelPoisonedError):
        engine.complete([1, 2, 3], SHORT)
    engine.close()
    with load() as again:
        assert again.complete([1, 2, 3], SHORT).tokens == expected


def test_a_process_that_dies_while_idle_poisons_the_model_at_once(load, processes, caplog) -> None:
    engine = load()
    with caplog.at_level(logging.ERROR):
        os.kill(processes[0].pid, signal.SIGSEGV)
        until(lambda: engine.health.poison is not None)
    assert "was killed by signal 11 (SIGSEGV)" in caplog.text
    assert "was killed by signal 11 (SIGSEGV)" in engine.health.poison.reason
    with pytest.raises(ModelPoisonedError, match="was killed by signal 11"):
        engine.complete([1, 2, 3], SHORT)
    engine.close()


def test_the_memory_of_the_device_comes_with_the_load_and_with_steps(
    device: str, tmp_path: Path
) -> None:
    machine = machine_memory()
    assert machine is not None
    executor: Any = loader(device)(llama.PLAIN.checkpoint(tmp_path), replace(CONFIG, device=device))
    assert executor.device_memory.total == machine.total
    executor._process.device_memory = None
    execute(executor, one_token())
    assert executor.device_memory.total == machine.total
    executor.close()


def test_the_memory_of_the_device_is_read_once_a_second() -> None:
    times = iter([0.0, 0.99, 1.0, 1.5])
    reader = child.MemoryReader(FakeExecutor(), lambda: next(times))
    assert [reader.newer() for _ in range(4)] == [MEMORY, None, MEMORY, None]


def test_a_silent_process_fails_the_step(load, processes) -> None:
    engine = load(rank_timeout=4)
    running = engine.stream([1, 2, 3], LONG)
    next(running)
    os.kill(processes[0].pid, signal.SIGSTOP)
    with pytest.raises(EngineFailedError, match="has been silent for more than 4 s"):
        list(running)
    engine.close()


def test_a_model_is_unloaded_while_its_process_computes(load) -> None:
    engine = load()
    running = engine.stream([1, 2, 3], LONG)
    next(running)
    engine.close()
    with pytest.raises(EngineClosedError):
        list(running)


def test_a_step_is_abandoned_while_it_computes(device: str, tmp_path: Path, processes) -> None:
    """One step of many tokens, which would take minutes."""
    model = replace(llama.PLAIN, context=1 << 16)
    config = replace(CONFIG, device=device, batch_tokens=1 << 16, kv_cache=1 << 26)
    executor = loader(device)(model.checkpoint(tmp_path), config)
    execute(executor, one_token())
    tokens = [1 + i % 30 for i in range(1 << 16)]
    binding = Binding(0, replace(SHORT, seed=0), tokens, [])
    pages = list(range(len(tokens) // 32))
    executor.submit(StepPlan((binding,), (Chunk(0, 0, tokens, pages, True),)))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(executor.collect)
        executor.abandon()
        with pytest.raises(StepAbandonedError):
            waiting.result(PATIENCE)
    executor.abandon()
    executor.close()
    assert processes[0].returncode == 0, "it was not killed"


def test_the_process_of_a_dropped_executor_ends(device: str, tmp_path: Path, processes) -> None:
    """For example, if the engine cannot be made after the model was loaded."""
    loader(device)(llama.PLAIN.checkpoint(tmp_path), replace(CONFIG, device=device))
    gc.collect()
    until(lambda: processes[0].returncode is not None)


def test_signals_that_ask_to_end_leave_the_process_alone(load, processes) -> None:
    with load() as engine:
        for asked in (signal.SIGINT, signal.SIGTERM):
            os.kill(processes[0].pid, asked)
        assert os.getpgid(processes[0].pid) != os.getpgid(0), "Ctrl-C does not reach it"
        assert len(engine.complete([1, 2, 3], SHORT).tokens) == 6


PARENT = """
import sys, time
from dataclasses import replace
from pathlib import Path
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.executors.devices import devices

device = sys.argv[2]
devices()[device] = replace(
    devices()[device], host="heddle.extensions.processes.load:load_in_process"
)
engine = Engine.load(sys.argv[1], EngineConfig(device=device, slots=2, threads=1, kv_cache=1 << 20))
print(engine.model.executor._process._process._process.pid, flush=True)
time.sleep(600)
"""


def test_the_process_ends_with_a_parent_that_is_killed(device: str, model: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(model), device], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent:
        child = int(parent.stdout.readline())
        parent.kill()

    def has_ended() -> bool:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state == "Z"  # nobody has asked for its status yet

    until(has_ended)


def test_a_draft_model_has_a_process_too(device: str, model: Path, tmp_path: Path, processes):
    small = replace(llama.PLAIN, layers=1, context=1 << 16).write_folder(tmp_path / "small")
    config = configured(CONFIG, device=device, draft=str(small))
    with Engine.load(model, config) as engine:
        assert len(processes) == 2
        assert len(engine.complete([1, 2, 3], SHORT).tokens) == 6


def test_a_server_serves_again_after_its_process_was_killed(device, model, processes) -> None:
    """With `--auto-recover`, over HTTP, in the same server. The request of that moment goes on."""
    config = replace(CONFIG, device=device)
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    with Registry(RegistryConfig(auto_recover=1), config) as registry:
        registry.load(str(model))
        with live_server(registry) as live:

            def ask() -> httpx.Response:
                return httpx.post(f"{live.url}/v1/completions", json=body, timeout=PATIENCE)

            expected = ask().json()["choices"]
            processes[0].kill()
            answer = ask()  # refused, if the server knows already that the process has ended
            if answer.status_code == 503:
                assert "was killed by signal 9" in answer.text
                until(lambda: ask().status_code == 200)
                answer = ask()
            assert answer.json()["choices"] == expected
            assert len(processes) == 2


def test_a_process_that_hangs_is_killed_and_its_requests_go_on(
    device, model, processes, monkeypatch
) -> None:
    monkeypatch.setattr("heddle.extensions.processes.executor._ABANDON_SECONDS", 0.0)
    config, asked = replace(CONFIG, device=device), replace(LONG, max_tokens=200)
    with Registry(RegistryConfig(auto_recover=1), config) as registry:
        engine = registry.load(str(model))
        expected = engine.complete([1, 2, 3], asked)
        running = engine.stream([1, 2, 3], asked)
        deltas = [next(running)]
        os.kill(processes[0].pid, signal.SIGSTOP)
        loop = engine.thread._loop

        def has_ended() -> bool:
            loop.give_up_step(loop.heartbeat.now, 1.0, lost=False)  # as the watchdog does
            return engine.closed

        until(has_ended)
        deltas += running
        assert "".join(delta.text for delta in deltas) == expected.text
        assert deltas[-1].usage == expected.usage
        assert (len(processes), loop.heartbeat.left_behind) == (2, False)


@pytest.mark.torch
@pytest.mark.skipif("torch" not in HERE, reason="only torch has ranks here")
def test_ranks_run_in_the_process_and_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[Any]
) -> None:
    monkeypatch.setitem(devices(), "torch", replace(devices()["torch"], host=HOST))
    path = qwen3.MODELS[0].write_folder(tmp_path / "tiny")
    config = configured(CONFIG, device="torch", tensor_parallel=2)
    engine = Engine.load(path, config)
    tokens = engine.complete([1, 2, 3], SHORT).tokens
    [rank] = Path(f"/proc/{processes[0].pid}/task/{processes[0].pid}/children").read_text().split()
    assert len(processes) == 1, "rank 1 is a child of the child"
    processes[0].kill()
    with pytest.raises(EngineFailedError, match="was killed by signal 9"):
        engine.complete([1, 2, 3], SHORT)
    engine.close()
    until(lambda: not Path(f"/proc/{rank}").exists() or " Z " in _stat(rank))
    with Engine.load(path, config) as again:
        assert again.complete([1, 2, 3], SHORT).tokens == tokens


def _stat(process: str) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return " Z "
