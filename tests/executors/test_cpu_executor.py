"""Tests of the CPU executor alone: threads, instruction levels, memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_files import SMALL, one_token_plan, tiny_file

from heddle import _native
from heddle.config import EngineConfig
from heddle.cores import Cores, choose_cores
from heddle.errors import ConfigError, EngineFailedError, OutOfMemoryError
from heddle.executors import memory_plan
from heddle.executors.cpu import load as cpu_load
from heddle.executors.cpu.load import load
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from models.tiny.llama import PLAIN
from steps import execute

PLAIN_WIDE = replace(PLAIN, head_dim=32)

# Loads the file in its argument; the address space holds the stacks of only a few threads.
CROWDED = """
import resource, sys
from pathlib import Path
from heddle.config import EngineConfig
from heddle.errors import ConfigError
from heddle.executors.cpu.load import load
from heddle.weights.gguf.checkpoint import GGUFCheckpoint

file = GGUFCheckpoint.open(Path(sys.argv[1]))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
try:
    load(file, EngineConfig(threads=1000, kv_cache=1 << 20, min_free_memory=0))
except ConfigError as error:
    print(error.param, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts address space as Linux tells it")
def test_too_few_system_threads_are_a_config_error(tmp_path: Path) -> None:
    tiny_file(tmp_path)
    command = [sys.executable, "-c", CROWDED, str(tmp_path / "tiny.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("threads the system gives ")
    assert "of 1000 threads" in done.stdout
    assert done.stdout.endswith("; set fewer\n")


@pytest.mark.skipif(sys.platform != "linux", reason="no affinity of threads")
def test_pinned_threads_stay_on_processors_of_their_own(tmp_path):
    numbers = choose_cores().numbers
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    config = replace(SMALL, threads=len(numbers), pin_threads=True)
    executor = load(tiny_file(tmp_path), config)  # held, with its threads
    pinned = {
        min(allowed)
        for task in set(tasks.iterdir()) - before
        if len(allowed := os.sched_getaffinity(int(task.name))) == 1
    }
    assert pinned == set(numbers[1:])
    assert len(os.sched_getaffinity(0)) >= len(numbers)
    executor.close()


@pytest.mark.parametrize(
    ("numbers", "param", "message"),
    [
        ((0,), "threads", "2 threads need as many processors, and there are 1; set at most 1"),
        ((0, 5_000), "pin_threads", "not let a thread stay on processor 5000; leave pin_threads"),
    ],
)
def test_threads_that_cannot_be_pinned_are_a_config_error(
    tmp_path, monkeypatch, numbers, param, message
):
    monkeypatch.setattr(cpu_load, "choose_cores", lambda: Cores(numbers, 2, ()))
    with pytest.raises(ConfigError, match=message) as caught:
        load(tiny_file(tmp_path), replace(SMALL, threads=2, pin_threads=True))
    assert caught.value.param == param


def test_a_closed_executor_frees_the_model(tmp_path, monkeypatch):
    arena = _native.Arena()
    monkeypatch.setattr(_native, "Arena", lambda: arena)
    held = sys.getrefcount(arena)
    executor = load(tiny_file(tmp_path), SMALL)
    execute(executor, one_token_plan())
    computed = executor.compute_seconds
    assert sys.getrefcount(arena) > held
    executor.close()
    executor.close()
    assert sys.getrefcount(arena) == held
    assert executor.memory.pages * executor.page_bytes > 0
    assert executor.compute_seconds == computed > 0


class FailedStep:
    """A native step in which a compute thread failed."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    def finish(self) -> None:
        raise self.kind("broken")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MemoryError, "no memory left for the step"),
        (RuntimeError, "a compute thread failed: broken"),
    ],
)
def test_an_error_of_a_compute_thread_is_a_heddle_error(tmp_path, kind, message):
    executor = load(tiny_file(tmp_path), SMALL)
    expected = execute(executor, one_token_plan())
    executor.submit(one_token_plan())
    step, *rest = executor._submitted
    step.finish()
    executor._submitted = (FailedStep(kind), *rest)
    with pytest.raises(EngineFailedError, match=message):
        executor.collect()
    assert execute(executor, one_token_plan()) == expected


def test_a_kv_cache_without_its_thread_is_a_config_error(tmp_path, monkeypatch):
    class Crowded:
        bytes_of_page = _native.KvCache.bytes_of_page

        def __init__(self, *sizes: object) -> None:
            raise RuntimeError("Resource temporarily unavailable")

    monkeypatch.setattr(_native, "KvCache", Crowded)
    with pytest.raises(ConfigError, match="start a thread for the KV cache: Resource"):
        load(tiny_file(tmp_path), SMALL)


def test_the_page_format_depends_on_the_cosines_of_the_machine(tmp_path, monkeypatch):
    executor = load(tiny_file(tmp_path), SMALL)
    here, cosine = executor.page_format, np.cos
    assert executor.page_format == here
    monkeypatch.setattr(
        np, "cos", lambda x: np.where(x > 9_000, np.nextafter(cosine(x), 2), cosine(x))
    )
    assert executor.page_format != here


def test_the_page_format_depends_on_the_settings_that_change_pages(tmp_path):
    changes = {}, {"kv_type": "q8_0"}, {"kv_type": "q4"}, {"quantize": "q8_0"}, {"slots": 1}
    file = tiny_file(tmp_path, PLAIN_WIDE.metadata(), {t.name: t for t in PLAIN_WIDE.tensors()})
    plain, *changed, other = (load(file, replace(SMALL, **more)).page_format for more in changes)
    assert len({plain, *changed}) == len(changes) - 1
    assert other == plain


def test_held_bytes_count_weights_pages_and_tokenizer_once(tmp_path):
    file = tiny_file(tmp_path)
    executor = load(file, SMALL)
    packed = executor.held_bytes - executor.memory.bytes - memory_plan.text_bytes(executor.shape)
    assert executor.weight_bytes <= packed < (tmp_path / "tiny.gguf").stat().st_size


def test_an_unsupported_instruction_level_is_refused(tmp_path):
    levels = _native.isa_levels()
    foreign = "avx512" if "neon" in levels else "neon"
    with pytest.raises(ConfigError, match=f"isa '{foreign}' does not run .* one of: {levels[0]}"):
        load(tiny_file(tmp_path), replace(SMALL, isa=foreign))


def test_fp8_pages_are_refused_with_the_types_and_devices_that_may_be_used(tmp_path):
    with pytest.raises(
        ConfigError, match=r"fp8 is not supported on device cpu; set .* q8_0"
    ) as error:
        load(tiny_file(tmp_path), replace(SMALL, kv_type="fp8"))
    assert error.value.param == "kv_type"


def test_q8_0_holds_nearly_twice_the_tokens_in_the_same_bytes(tmp_path):
    PLAIN_WIDE.write(tmp_path / "wide.gguf")
    half, eighth = (
        load(
            GGUFCheckpoint.open(tmp_path / "wide.gguf"), replace(SMALL, kv_type=kv_type, slots=1000)
        )
        for kv_type in ("f16", "q8_0")
    )
    assert half.page_bytes * 34 == eighth.page_bytes * 64
    assert 1.8 * half.memory.pages < eighth.memory.pages <= half.memory.pages * 64 / 34
    assert half.memory.pages * half.page_bytes <= SMALL.kv_cache
    assert "MB in f16 (" in half.summary
    assert "MB in q8_0 (" in eighth.summary


def test_a_summary_says_which_processors_the_default_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = Cores((0,), 2, ("hyper-threads left out",))
    monkeypatch.setattr(cpu_load, "choose_cores", lambda: cores)
    default, chosen = (
        load(tiny_file(tmp_path), replace(SMALL, threads=threads)) for threads in (0, 2)
    )
    assert default.summary.startswith("1 thread (of 2 processors: hyper-threads left out), ")
    assert (chosen.threads, chosen.summary[:11]) == (2, "2 threads, ")


def test_a_kv_cache_beyond_free_memory_is_refused_with_both_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_plan, "memory_limits", lambda: {"the available memory": 10**8})
    huge = EngineConfig(slots=1024, threads=1, kv_cache=100 << 30, min_free_memory=0)
    metadata = {"llama.context_length": 10**6}
    with pytest.raises(
        OutOfMemoryError, match=r"KV cache of 107\.37 GB .* 0\.10 GB: set a smaller"
    ):
        load(tiny_file(tmp_path, metadata), huge)
    load(tiny_file(tmp_path, metadata), replace(huge, kv_cache=1 << 20)).close()


def test_weights_beyond_free_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_plan, "memory_limits", lambda: {"the available memory": 1_000})
    with pytest.raises(OutOfMemoryError, match="take a smaller model") as error:
        load(tiny_file(tmp_path), EngineConfig(threads=1))
    assert error.value.param == "model"


@pytest.mark.parametrize("threads", [1, 2])
def test_compute_time_excludes_the_work_of_the_caller(tmp_path, threads):
    executor = load(tiny_file(tmp_path), replace(SMALL, threads=threads))
    started = time.perf_counter()
    executor.submit(one_token_plan())
    begun = time.perf_counter()
    time.sleep(0.005)  # work of a known length
    worked = time.perf_counter() - begun
    executor.collect()
    taken = time.perf_counter() - started
    assert executor.compute_seconds <= taken - worked / threads
