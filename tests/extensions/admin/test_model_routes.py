"""Models are loaded and unloaded over HTTP; probes of all extensions load none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from fake_loads import poison
from heddle.engine import Engine
from heddle.errors import (
    ChecksumError,
    HeddleError,
    ModelFileError,
    ModelSourceError,
    UnsupportedModelError,
)
from model_server import model_server
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from heddle.config import EngineConfig
    from model_server import ModelServer

PROBES = {
    "/health": 200,
    "/health/live": 200,
    "/health/ready": 200,
    "/health/ready?model=one": 200,
    "/metrics": 200,
    "/models": 200,
    "/v1/models/one": 200,
    "/props": 200,
    "/props?model=one": 200,
    "/slots": 404,
    "/v1/prefix_cache_stats": 404,
    "/v1/engrams": 200,
    "/api/tags": 200,
    "/api/ps": 200,
    "/api/version": 200,
    "/api/show": 200,
}
"""Routes that supervisors and user interfaces ask again and again, and their status if the model is
not loaded."""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with model_server(tmp_path, monkeypatch, metric_names="llamacpp") as server:
        yield server


def test_probes_do_not_renew_the_time_of_a_model(models: ModelServer) -> None:
    entry = models.registry._entries.by_name["one"]
    entry.used_at = 1.0
    for path in PROBES:
        assert models.probe(path).status_code == 200
        assert entry.used_at == 1.0, path
    assert models.probe("/props").json()["is_sleeping"] is False
    assert models.complete("one").status_code == 200
    assert entry.used_at > 1.0


def test_probes_load_no_model(models: ModelServer) -> None:
    awake = models.probe("/props").json()
    models.registry.unload("one")
    for path, status in PROBES.items():
        assert models.probe(path).status_code == status, path
    asleep = models.probe("/props?model=best").json()
    assert asleep == awake | {"is_sleeping": True, "model_alias": "best"}
    answer = models.probe("/props?model=two")  # it was never loaded
    assert answer.status_code == 404
    assert "'two' is unloaded; the next request for it" in answer.json()["error"]["message"]
    assert models.loads == ["one"]
    loaded = models.probe("/props?model=two&autoload=true").json()
    assert (loaded["model_alias"], loaded["is_sleeping"]) == ("two", False)
    assert models.probe("/props?model=three").status_code == 404


def counters(models: ModelServer) -> dict[str, float]:
    lines = models.probe("/metrics").text.splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def test_counters_go_on_when_a_model_is_loaded_again(models: ModelServer) -> None:
    own, steps = 'heddle_generated_tokens_total{model="one"}', "heddle_steps_total"
    seconds, level = "llamacpp:prompt_seconds_total", 'heddle_slots{model="one"}'
    tokens = "llamacpp:tokens_predicted_total"
    models.complete("one")
    before = counters(models)
    assert (before[own], before[tokens]) == (2, 2)
    models.registry.unload("one")
    asleep = counters(models)
    assert (asleep[own], asleep[tokens], asleep[seconds]) == (2, 2, before[seconds])
    assert [key for key in asleep if key.startswith(steps)] == [
        key for key in before if key.startswith(steps)
    ]
    assert (level in before, level in asleep) == (True, False)
    models.complete("one")
    after = counters(models)
    assert (after[own], after[tokens]) == (4, 4)
    assert after[seconds] > before[seconds]


def test_counters_of_a_poisoned_model_go_on(models: ModelServer) -> None:
    models.complete("one")
    engine = models.registry.engine("one")
    poison(engine, engine.model.executor)  # type: ignore[arg-type]  # the fake one
    models.registry.load("one")
    models.complete("one")
    assert counters(models)['heddle_generated_tokens_total{model="one"}'] == 4


def test_counters_of_a_forgotten_model_are_forgotten(models: ModelServer) -> None:
    models.registry.load("guest")
    models.complete("guest")
    models.registry.unload("guest")  # a model that no setting names
    assert not [key for key in counters(models) if "guest" in key and "_tokens_total" in key]


def test_properties_of_a_forgotten_model_are_forgotten(models: ModelServer) -> None:
    models.registry.load("guest")
    assert models.probe("/props?model=guest").status_code == 200
    models.registry.unload("guest")  # a model that no setting names
    models.registry.load("other")
    models.registry.add("guest")
    assert models.probe("/props?model=guest").status_code == 404


def test_loading_and_unloading(models: ModelServer) -> None:
    loaded = models.post("/models/load", model="two", slots=3, kv_cache="64M", wait=True)
    assert (loaded.status_code, loaded.json()["status"]) == (200, {"value": "loaded"})
    engine = models.registry.engine("two")
    assert (engine.config.slots, engine.config.kv_cache) == (3, 64 << 20)
    again = models.post("/v1/models/load", model="two")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "model_already_loaded")
    gone = models.post("/models/unload", model="two")
    assert (gone.status_code, gone.json()["status"]["value"]) == (200, "unloaded")
    assert engine.closed
    assert models.states()["two"] == "unloaded"
    again = models.post("/models/unload", model="two")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "model_not_found")


def test_a_load_need_not_be_waited_for(models: ModelServer) -> None:
    models.gate.clear()
    begun = models.post("/models/load", model="two", wait=False)
    assert (begun.status_code, begun.json()["status"]["value"]) == (202, "loading")
    models.gate.set()
    models.registry.begin_known("two").result(PATIENCE)
    assert models.states()["two"] == "loaded"


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"model": "/etc/passwd"}, 403, "forbidden", "model"),
        ({"model": "org/name"}, 403, "forbidden", "model"),
        ({"model": "three"}, 404, "model_not_found", "model"),
        ({"model": "two", "slots": 0}, 400, "invalid_setting", "slots"),
        ({"model": "two", "kv_cache": "many"}, 400, "invalid_setting", "kv_cache"),
        ({"model": "two", "prefix_cache_dir": "/tmp"}, 400, "unsupported_parameter", None),
        ({"model": "two", "hub_cache": "/tmp"}, 400, "unsupported_parameter", None),
        ({"model": "two", "device": "cpu"}, 400, "unsupported_parameter", None),
        ({"model": "two", "offline": True}, 400, "unsupported_parameter", None),
        ({"slots": 2}, 400, "invalid_value", "model"),
    ],
)
def test_wrong_loads_are_refused(
    models: ModelServer, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    refused = models.post("/models/load", **body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (status, code), error
    assert param is None or error["param"] == param
    assert models.loads == ["one"]


def test_metrics_and_slots_of_each_model(models: ModelServer) -> None:
    models.post("/models/load", model="two", slots=3)
    models.complete("two")
    metrics = httpx.get(models.url + "/metrics", timeout=PATIENCE).text
    assert 'heddle_generated_tokens_total{model="two"} 2.0' in metrics
    assert 'heddle_generated_tokens_total{model="one"} 0.0' in metrics
    assert 'heddle_model{model="two",state="loaded"} 1.0' in metrics
    slots = httpx.get(models.url + "/slots", params={"model": "two"}, timeout=PATIENCE).json()
    assert len(slots) == 3
    ready = httpx.get(models.url + "/health/ready", params={"model": "two"}, timeout=PATIENCE)
    assert (ready.status_code, ready.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    "error",
    [
        ModelSourceError("it cannot be fetched", param="model"),
        ChecksumError("other bytes arrived", param="model"),
        ModelFileError("two.gguf: magic is wrong", field="magic"),
        UnsupportedModelError("its architecture is unknown", param="model"),
    ],
)
def test_a_model_that_cannot_be_had_is_no_fault_of_the_server(
    models: ModelServer, monkeypatch: pytest.MonkeyPatch, error: HeddleError
) -> None:
    def load(source: str, config: EngineConfig, **more: Any) -> Engine:
        raise error

    monkeypatch.setattr(Engine, "load", load)
    answer = models.post("/v1/models/load", model="two")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, error.code)
    assert models.complete("one").status_code == 200


def test_a_model_is_loaded_again_with_other_settings(models: ModelServer) -> None:
    answer = models.post("/models/reload", model="one", slots=3)
    assert (answer.status_code, answer.json()["id"]) == (200, "one")
    assert models.registry.engine("one").config.slots == 3
    models.post("/models/reload", model="one", batch_tokens=64)
    assert models.registry.engine("one").config.slots == 3  # those that are not named stay
    assert models.complete("one").status_code == 200
    assert models.post("/models/reload", model="two").status_code == 404
    refused = models.post("/models/reload", model="one", slots=0)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "slots")


def test_an_unload_with_move_needs_a_copy(models: ModelServer) -> None:
    refused = models.post("/models/unload", model="one", move=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_copy")
    models.post("/models/load", model="one", name="other")
    assert models.post("/models/unload", model="one", move=True).status_code == 200
    assert models.complete("other").status_code == 200
