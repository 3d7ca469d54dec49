"""Models are loaded once, found by name, unloaded when idle, and loaded again after poison."""

from __future__ import annotations

import gc
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest

from configs import configured
from fake_loads import SIZE, Loads, generate, poison, until
from heddle.config import EngineConfig, RegistryConfig
from heddle.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.errors import (
    EngineClosedError,
    ForbiddenError,
    ModelFileError,
    ModelLoadedError,
    ModelNotFoundError,
    ModelPoisonedError,
    ModelUnavailableError,
    ModelUnloadedError,
    OutOfMemoryError,
)
from heddle.extensions.drafters.settings import DrafterSettings
from heddle.hosting import loads as loads_module
from heddle.hosting import unloads as unloads_module
from heddle.hosting.loads import Loads as RealLoads
from heddle.hosting.registry import Registry
from heddle.hosting.status import ModelState
from heddle.sampling_params import SamplingParams
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loads]:
    loads = Loads()
    monkeypatch.setattr(Engine, "load", loads)
    for module in (loads_module, unloads_module):
        monkeypatch.setattr(module, "reclaim_memory", loads.note_reclaim)  # it takes 0.2 s
    yield loads
    loads.gate.set()
    for executor in loads.executors:
        executor.gate.set()


@pytest.fixture
def make(loads: Loads) -> Iterator[Callable[..., Registry]]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Registry(RegistryConfig(**settings)))


def state(registry: Registry, name: str) -> ModelState:
    return next(one.state for one in registry.status() if one.name == name)


def test_models_answer_by_name(make) -> None:
    registry = make()
    one, two = registry.load("one"), registry.load("two")
    assert registry.names == ("one", "two")
    assert registry.engine() is registry.engine("one") is one
    assert registry.engine("two") is two
    assert (generate(one), generate(two)) == (2, 2)
    with (
        Registry() as nothing,
        pytest.raises(ModelNotFoundError, match=r"no default model; there is none\. Name one"),
    ):
        nothing.engine()
    with pytest.raises(ModelNotFoundError, match="'three' is not loaded; there is 'one', 'two'"):
        registry.engine("three")


def test_a_draft_model_for_all_has_to_fit_only_the_default_model(loads: Loads) -> None:
    common, own = configured(draft="small"), configured(draft="other")
    with Registry(engine=common) as registry:
        registry.load("one")
        registry.load("two")
        registry.load("three", config=replace(common, slots=2))
        registry.load("four", config=own)
    found = [config.of(DrafterSettings) for config in loads.configs]
    assert [one.draft_required for one in found] == [True, False, False, True]
    assert [one.draft for one in found] == ["small"] * 3 + ["other"]


def test_two_callers_load_a_model_once(make, loads: Loads) -> None:
    registry = make()
    loads.gate.clear()
    first, second = registry.begin_load("one"), registry.begin_load("one")
    assert loads.begun.wait(PATIENCE)
    assert state(registry, "one") is ModelState.LOADING
    with pytest.raises(ModelUnavailableError, match="'one' is loading"):
        registry.engine("one")
    with pytest.raises(ModelLoadedError, match="'one' is loading already, from one"):
        registry.begin_load("elsewhere", name="one")
    loads.gate.set()
    assert first.result(PATIENCE) is second.result(PATIENCE)
    assert loads.sources == ["one"]
    with pytest.raises(ModelLoadedError, match="'one' is loaded already"):
        registry.load("one")


def test_a_failed_load_is_told_and_can_be_repeated(make, loads: Loads) -> None:
    registry = make()
    loads.error = ModelFileError("the header is damaged", field="header")
    with pytest.raises(ModelFileError, match="damaged"):
        registry.load("one")
    [status] = registry.status()
    assert (status.state, status.reason) == (ModelState.FAILED, "the header is damaged")
    with pytest.raises(ModelUnavailableError, match=r"the header is damaged\. Mend") as refused:
        registry.engine("one")
    assert refused.value.retry_after is None
    loads.error = None
    assert generate(registry.load("one")) == 2
    [status] = registry.status()
    assert (status.state, status.reason) == (ModelState.LOADED, None)


def test_a_model_that_a_callback_refuses_is_a_failed_load(make, loads: Loads) -> None:
    registry = make()

    def refuse(name: str, engine: Engine) -> None:
        raise RuntimeError(f"no place for {name}")

    registry.on_loaded(refuse)
    with pytest.raises(RuntimeError, match="no place for one"):
        registry.load("one")
    [status] = registry.status()
    assert (status.state, status.reason) == (ModelState.FAILED, "no place for one")


def test_a_callback_that_comes_during_a_load_sees_the_model(make, loads: Loads) -> None:
    registry, seen = make(), []

    def first(name: str, engine: Engine) -> None:
        registry.on_loaded(lambda name, engine: seen.append(name))

    registry.on_loaded(first)
    registry.load("one")
    assert seen == ["one"]


def test_a_known_model_may_be_loaded_once_more_under_another_name(make, loads: Loads) -> None:
    registry = make()
    registry.add("folder/file", name="one")
    registry.load("one")
    again = registry.load("one", name="two")
    assert registry.engine("two") is again is not registry.engine("one")
    assert loads.sources == ["folder/file", "folder/file"]


def test_what_an_unloaded_failed_or_poisoned_model_leaves_is_freed(make, loads: Loads) -> None:
    registry = make()
    engine = ref(registry.load("one"))
    loads.alive = engine
    registry.unload("one")
    assert loads.reclaims == [None], "the memory is freed while something refers to the engine"
    loads.alive = ref(registry.load("two"))
    poison(registry.engine("two"), loads.executors[-1])
    registry.load("two")
    assert loads.reclaims == [None, None]


def test_the_error_of_a_failed_load_keeps_no_objects(make, loads: Loads) -> None:
    registry, engines = make(), []

    def refuse(_: str, engine: Engine) -> None:
        engines.append(ref(engine))
        raise ValueError("no place") from None

    registry.on_loaded(refuse)
    load = registry.begin_load("one")
    with pytest.raises(ValueError, match="no place"):
        load.result(PATIENCE)
    gc.collect()
    assert [engine() for engine in engines] == [None]
    assert len(loads.reclaims) == 1


def test_one_thread_loads_all_models_and_ends_with_the_registry(make, loads: Loads) -> None:
    before = set(threading.enumerate())
    registry = make()
    registry.load("one")
    [loader] = [one for one in set(threading.enumerate()) - before if one.name == "heddle-load"]
    registry.load("two")
    assert sum(one.name == "heddle-load" for one in set(threading.enumerate()) - before) == 1
    registry.close()
    loader.join(PATIENCE)
    assert not loader.is_alive()


def test_unloading_lets_accepted_requests_finish(make, loads: Loads) -> None:
    registry = make()
    engine = registry.load("one")
    [executor] = loads.executors
    executor.gate.clear()
    collector = Collector()
    engine.submit("hello", SamplingParams(seed=1, max_tokens=3, ignore_eos=True), collector)
    unloading = threading.Thread(target=registry.unload, args=("one",))
    unloading.start()
    until(lambda: state(registry, "one") is ModelState.UNLOADING)
    with pytest.raises(ModelUnavailableError, match="unloading"):
        registry.engine("one")
    with pytest.raises(ModelUnavailableError, match="unloading"):
        registry.load("one")
    executor.gate.set()
    assert collector.wait().usage.completion_tokens == 3
    unloading.join(PATIENCE)
    assert registry.names == ()
    with pytest.raises(ModelNotFoundError):
        registry.unload("one")


def wait_a_little(_: int) -> None:
    threading.Event().wait(0.002)


def test_unloading_ends_requests_that_take_too_long(make, loads: Loads) -> None:
    registry = make(unload_seconds=0)
    engine = registry.load("one")
    collector = Collector()
    engine.submit("hello", SamplingParams(seed=1, max_tokens=400, ignore_eos=True), collector)
    loads.executors[0].before_step = wait_a_little
    registry.unload("one")
    with pytest.raises(EngineClosedError):
        collector.wait()


def test_under_a_memory_limit_the_least_recently_used_idle_model_goes(make, loads: Loads) -> None:
    registry = make(memory=2 * SIZE + 10)
    for name in ("one", "two"):
        registry.add(name)
        registry.load(name)
    registry.engine("one")  # now two is the least recently used
    registry.load("three")
    assert [state(registry, name).value for name in ("one", "two", "three")] == [
        "loaded",
        "unloaded",
        "loaded",
    ]


def test_a_model_gets_what_the_limits_leave_it_at_most_its_own(make, loads: Loads) -> None:
    registry = make(memory=2 * SIZE + 10)
    registry.load("one", config=EngineConfig(model_memory=SIZE + 1))
    registry.load("two", config=EngineConfig(model_memory=5 * SIZE))
    assert [config.model_memory for config in loads.configs] == [SIZE + 1, SIZE + 10]


def test_a_poisoned_model_is_not_unloaded_to_make_room(make, loads: Loads) -> None:
    """It holds no memory, and its state says what failed."""
    registry = make(memory=2 * SIZE)
    for name in ("one", "two"):
        registry.add(name)
    poison(registry.load("one"), loads.executors[0])
    until(lambda: state(registry, "one") is ModelState.POISONED)
    for name in ("two", "three", "four"):
        registry.load(name)
    assert state(registry, "one") is ModelState.POISONED
    assert state(registry, "two") is ModelState.UNLOADED


def test_a_load_that_cannot_fit_is_refused_and_busy_models_stay(make, loads: Loads) -> None:
    registry = make(memory=SIZE + 10)
    engine = registry.load("one")
    loads.executors[0].gate.clear()
    collector = Collector()
    engine.submit("hello", SamplingParams(seed=1, max_tokens=3, ignore_eos=True), collector)
    with pytest.raises(OutOfMemoryError, match="1000 bytes do not fit 10"):
        registry.load("two")
    assert state(registry, "one") is ModelState.LOADED
    loads.executors[0].gate.set()
    assert collector.wait().usage.completion_tokens == 3


def test_known_models_load_on_demand(make, loads: Loads) -> None:
    registry = make(autoload=True)
    registry.add("one")
    with pytest.raises(ModelUnloadedError) as unloaded:
        registry.engine("one")
    assert unloaded.value.model == "one"
    engine = registry.begin_known("one").result(PATIENCE)
    assert registry.begin_known("one").result(PATIENCE) is engine is registry.engine("one")
    registry.unload("one")
    assert registry.names == ("one",)
    assert generate(registry.begin_known("one").result(PATIENCE)) == 2


def test_without_autoload_a_known_model_must_be_loaded_first(make) -> None:
    registry = make()
    registry.add("one")
    with pytest.raises(ModelNotFoundError, match="--autoload"):
        registry.engine("one")


def test_an_idle_model_is_unloaded_after_its_keep_alive(make, loads: Loads) -> None:
    registry = make()
    registry.add("one")
    registry.load("one", keep_alive=0.001)
    until(lambda: state(registry, "one") is ModelState.UNLOADED)


def test_the_keep_alive_of_a_model_begins_when_its_requests_have_ended(make, loads: Loads) -> None:
    registry = make()
    busy = registry.load("busy")
    loads.executors[-1].gate.clear()
    collector = Collector()
    busy.submit("hello", SamplingParams(seed=1, max_tokens=3, ignore_eos=True), collector)
    registry._entries.by_name["busy"].keep_alive = 0.001
    registry.load("idle", keep_alive=0.001)
    until(lambda: "idle" not in registry or state(registry, "busy") is not ModelState.LOADED)
    assert state(registry, "busy") is ModelState.LOADED
    loads.executors[0].gate.set()
    assert collector.wait().usage.completion_tokens == 3
    until(lambda: "busy" not in registry)


def test_a_poisoned_model_says_so_until_it_is_loaded_again(make, loads: Loads) -> None:
    registry = make()
    engine = registry.load("one")
    poison(engine, loads.executors[0])
    until(lambda: state(registry, "one") is ModelState.POISONED)
    [status] = registry.status()
    assert status.reason is not None
    assert "burns" in status.reason
    assert status.memory_bytes == 0
    with pytest.raises(ModelPoisonedError):
        generate(registry.engine("one"))
    assert generate(registry.load("one")) == 2


def test_a_poisoned_model_recovers_as_often_as_the_settings_say(
    make, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = []

    class AtOnce(threading.Timer):
        def __init__(self, delay: float, *more: Any) -> None:
            delays.append(delay)
            super().__init__(0, *more)

    ended, recover_later = [], RealLoads._recover_later

    def note_end(loads: RealLoads, entry: Any) -> None:
        recover_later(loads, entry)
        ended.append(entry.name)

    monkeypatch.setattr(RealLoads, "_recover_later", note_end)
    monkeypatch.setattr("heddle.hosting.loads.threading.Timer", AtOnce)
    monkeypatch.setattr(loads_module, "STEADY", PATIENCE)
    registry = make(auto_recover=2, resume_tries=0)
    registry.load("one")
    for count in (1, 2):
        poison(registry.engine("one"), loads.executors[-1])
        until(lambda count=count: len(loads.executors) == count + 1)  # type: ignore[misc]
        until(lambda: state(registry, "one") is ModelState.LOADED)
    assert delays == [1.0, 2.0]
    monkeypatch.setattr(loads_module, "STEADY", -1)  # it has run for long enough
    poison(registry.engine("one"), loads.executors[-1])
    until(lambda: len(loads.executors) == 4)
    until(lambda: state(registry, "one") is ModelState.LOADED)
    assert delays == [1.0, 2.0, 1.0]
    monkeypatch.setattr(loads_module, "STEADY", PATIENCE)
    poison(registry.engine("one"), loads.executors[-1])
    until(lambda: len(loads.executors) == 5)
    until(lambda: state(registry, "one") is ModelState.LOADED)
    poison(registry.engine("one"), loads.executors[-1])
    until(lambda: len(ended) == 5)
    assert delays == [1.0, 2.0, 1.0, 2.0]
    assert state(registry, "one") is ModelState.POISONED


def test_requests_name_only_allowed_models(make, loads: Loads, tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    registry = make(models_dir=str(tmp_path))
    assert registry.names == ("small",)
    for name in ("/etc/passwd", "../small.gguf", "org/name"):
        with pytest.raises(ForbiddenError):
            registry.begin_load(name, confined=True)
    registry.begin_load("small", confined=True).result(PATIENCE)
    assert loads.sources == [str(tmp_path / "small.gguf")]


def test_closing_ends_all_models_and_refuses_loads(make, loads: Loads) -> None:
    registry = make()
    engines = [registry.load("one"), registry.load("two")]
    loads.gate.clear()
    late = registry.begin_load("three")
    registry.close()
    assert all(engine.closed for engine in engines)
    loads.gate.set()
    with pytest.raises(EngineClosedError):
        late.result(PATIENCE)
    with pytest.raises(EngineClosedError):
        registry.load("four")
