"""Streams of all kinds end as if their model had not failed, wherever a step fails."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cache_integrity import check_cache
from failures.chats import bodies, stream, stream_all
from failures.chatty_models import SHAPES
from failures.step_faults import ALL, DEVICE, Faults
from failures.streams import mixed, submit
from fake_loads import until
from heddle.errors import ModelPoisonedError, ModelUnavailableError
from heddle.executors.devices import devices
from live_server import live_server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from failures.conftest import Soaked
    from failures.streams import Reader, Stream
    from heddle.engine import Engine
    from heddle.hosting.registry import Registry

    Write = Callable[[str], Soaked]
    Open = Callable[[Soaked], AbstractContextManager[Registry]]

KINDS = list(SHAPES)
HOST = "heddle.extensions.processes.load:load_in_process"
CHEAP = ("collect, after", "bind, before", "apply outcome, after", "deliver tokens, before", DEVICE)
"""Points that every load comes to."""


def points_of(kind: str) -> list[str]:
    """The points that steps of a model come to. Nothing preempts sequences that need no pages."""
    return [one for one in ALL if kind != "recurrent" or not one.startswith("preempt")]


def soak(model: Soaked, models: Registry, faults: Faults, count: int) -> int:
    """Run the streams until so many faults have been raised. All must end as undisturbed ones do.

    Returns how many streams there were.
    """
    models.on_loaded(faults.watch)
    models.load(model.path)
    faults.aim(count)
    rounds = 0
    while faults.left:
        rounds += 1
        assert rounds < 50 + 10 * faults.raised.total(), f"no step comes to {faults.wanted}"
        streams = mixed()
        wrong = [
            f"{kind}: {reader.error or reader.result()}\n  expected {expected}"
            for (kind, _, _), reader, expected in zip(
                streams, submit_again(models, streams), model.expected, strict=True
            )
            if reader.result() != expected
        ]
        assert not wrong, "\n".join(wrong)
    return rounds * len(model.expected)


def submit_again(models: Registry, streams: list[Stream]) -> list[Reader]:
    """Submit the streams, perhaps while the model is loaded again after the last fault."""
    readers: list[Reader] = []

    def submitted() -> bool:
        try:
            readers[:] = submit(models.engine(), streams)
        except (ModelPoisonedError, ModelUnavailableError):
            return False
        return True

    until(submitted)
    return readers


def check_nothing_is_left(models: Registry, faults: Faults) -> None:
    """No slot, page, snapshot or request is held, and no engine but the last one is left."""
    submit_again(models, mixed()[:1])[0].result()  # once the model is loaded again
    engine = models.engine()
    until(lambda: not engine.snapshot().running)
    loop = engine.thread._loop
    assert not loop.delivery.requests
    assert not loop.scheduler._live
    assert not loop.cache.pages._tables
    check_cache(loop.cache)
    del loop
    gc.collect()
    assert list(faults.engines) == [engine]


def held() -> Counter[str]:
    """The open files and the threads of this process, without those of garbage."""
    gc.collect()
    links = (one for one in Path("/proc/self/fd").iterdir() if one.is_symlink())
    threads = (thread.name for thread in threading.enumerate())
    return Counter(str(one.readlink()) for one in links) + Counter(threads)


def check_held(before: Counter[str]) -> None:
    """The process holds no more than it held `before`, soon.

    It may hold less: a thread of an earlier test may have ended meanwhile.
    """
    deadline = time.monotonic() + PATIENCE
    while held() - before and time.monotonic() < deadline:
        time.sleep(0.01)  # lets threads end
    assert not held() - before


@pytest.mark.usefixtures("lazy_reclaims")
@pytest.mark.parametrize("kind", KINDS)
def test_streams_go_on_wherever_a_step_fails(written: Write, opened: Open, kind: str) -> None:
    """At a fifth of the points with each kind of model. The long soak has all points with each."""
    model, before = written(kind), held()
    points = points_of(kind)[KINDS.index(kind) :: len(KINDS)]
    faults = Faults(points)
    with opened(model) as models:
        soak(model, models, faults, len(points))
        check_nothing_is_left(models, faults)
    del models
    check_held(before)
    assert set(faults.raised) == set(points)


@pytest.mark.usefixtures("lazy_reclaims")
def test_chats_go_on_wherever_a_step_fails(written: Write, opened: Open) -> None:
    """Over HTTP: reasoning, calls and JSON are read from text that goes on."""
    model = written("dense")
    model = model._replace(config=replace(model.config, kv_cache=1 << 19))
    faults = Faults(CHEAP)
    with opened(model) as models:
        models.on_loaded(faults.watch)
        models.load(model.path)
        with live_server(models) as live:
            expected = [stream(live.url, body) for body in bodies()]
            faults.aim(len(CHEAP))
            while faults.left:
                until(lambda: models.engine().health.poison is None)
                assert stream_all(live.url, bodies()) == expected
            check_nothing_is_left(models, faults)
    parts = {name for one in expected for _, name in one.texts}
    assert parts > {"content", "reasoning_content", "call 0 name", "call 0 arguments"}


@pytest.mark.usefixtures("lazy_reclaims")
def test_streams_go_on_after_their_process_was_killed(
    written: Write, opened: Open, processes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a step, between a step and the next, and before the first step."""
    monkeypatch.setitem(devices(), "cpu", replace(devices()["cpu"], host=HOST))
    model, steps = written("hybrid"), [40, 150, 1]

    def watch(_: str, engine: Engine) -> None:
        executor: Any = engine.model.executor
        collect, left = executor.collect, steps.pop() if steps else 0

        def collected() -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                processes[-1].kill()
            return collect()

        executor.collect = collected

    with opened(model) as models:
        models.on_loaded(watch)
        models.load(model.path)
        readers = submit_again(models, mixed())
        assert [reader.result() for reader in readers] == model.expected
        assert len(processes) == 4


@pytest.mark.soak
def test_a_thousand_faults(
    written: Write, opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    """No stream differs, and nothing is left or grows."""
    total = Counter[str]()
    sizes, began, streams = [], time.monotonic(), 0
    before = held()
    for number, kind in enumerate(KINDS * 2):
        faults = Faults(points_of(kind), seed=number)
        with opened(written(kind)) as models:
            streams += soak(written(kind), models, faults, 100)
            check_nothing_is_left(models, faults)
        del models
        check_held(before)
        total += faults.raised
        sizes.append(resident_bytes())
        with capsys.disabled():
            print(
                f"\n{kind}: {total.total()} faults, {streams} streams,"
                f" {time.monotonic() - began:.0f} s, {sizes[-1] / 1e6:.1f} MB resident"
            )
    with capsys.disabled():
        print("\n".join(f"{count:4} {point}" for point, count in sorted(total.items())))
    assert total.total() == 1000
    assert set(total) == set(ALL)
    half = len(KINDS)
    assert max(sizes[half:]) < 1.1 * max(sizes[:half])


def resident_bytes() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
