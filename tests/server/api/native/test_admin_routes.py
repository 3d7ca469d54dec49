"""Models, health, slots, metrics, and what all responses have in common."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fake_executor import MEMORY
from heddle.engine.streaming.backlog import Backlog
from heddle.server.api.native.metric_table import BACKLOG_ROWS
from heddle.weights.files import FileStamp
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_server import Running
    from heddle.errors import BacklogError


def scrape(server: Running) -> dict[str, float]:
    """Samples by name, labels appended. The label of the only model is left out."""
    response = server.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        "/".join(
            (sample.name, *(v for k, v in sample.labels.items() if k != "model"))
        ): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_models(shared: Running) -> None:
    [model] = shared.openai.models.list().data
    assert (model.id, model.object, model.owned_by) == ("fake", "model", "heddle")
    fields = model.model_dump()
    assert fields["root"] == "fake.gguf"
    assert fields["max_model_len"] == 512
    assert fields["quantisation"] == "F32"
    assert fields["kv_type"] == "f16"
    assert fields["parameters"] == 0
    assert fields["status"] == {"value": "loaded"}
    again = shared.openai.models.retrieve("fake").model_dump()
    assert again.pop("uptime_seconds") >= fields.pop("uptime_seconds") >= 0
    assert again == fields


def test_the_model_of_a_stopped_engine_is_retired(serve: Callable[..., Running]) -> None:
    server = serve()

    def lifecycles() -> set[str]:
        listed = server.get("/v1/models").json()["data"]
        return {model["lifecycle"] for model in [*listed, server.get("/v1/models/fake").json()]}

    assert lifecycles() == {"active"}
    server.engine.close()
    assert lifecycles() == {"retired"}


def test_another_model_is_not_found(shared: Running) -> None:
    for name in ("other", "with/slash"):
        response = shared.get(f"/v1/models/{name}")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"


def test_health_without_a_body(shared: Running) -> None:
    response = httpx.head(shared.url + "/health", timeout=PATIENCE)
    assert (response.status_code, response.content) == (200, b"")


def test_health(shared: Running) -> None:
    response = shared.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_health_says_whether_the_file_is_still_what_was_loaded(
    serve: Callable[..., Running], tmp_path: Path
) -> None:
    server, path = serve(), tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    model = server.engine.model
    info = replace(model.info, path=path, stamps={path: FileStamp.of(path.stat())})
    server.engine.model = replace(model, info=info)

    def state() -> str:
        response = server.get("/health")
        assert response.status_code == 200
        assert response.json() == {"status": "ok", "model_file": response.json()["model_file"]}
        return str(response.json()["model_file"])

    assert state() == "unchanged"
    path.write_bytes(b"weight")
    assert state() == "changed"
    path.unlink()
    assert state() == "missing"


def test_metrics_under_llama_cpp_s_names(serve: Callable[..., Running]) -> None:
    server = serve(metric_names="llamacpp", slots=2)
    for letter in "ab":
        body = {"prompt": letter * 5, "max_tokens": 4, "ignore_eos": True}
        assert server.post("/completion", body).status_code == 200
    server.until(server.idle)
    now = {
        name.removeprefix("llamacpp:"): value
        for name, value in scrape(server).items()
        if name.startswith("llamacpp:")
    }
    assert (now["prompt_tokens_total"], now["tokens_predicted_total"]) == (10, 8)
    assert now["prompt_tokens_cached_total"] == 0
    assert (now["n_tokens_max"], now["requests_processing"], now["requests_deferred"]) == (9, 0, 0)
    assert now["prompt_seconds_total"] > 0
    assert now["tokens_predicted_seconds_total"] > 0
    assert now["n_decode_total"] >= 8
    assert now["spec_decode_num_draft_tokens_total"] == 0
    assert now["spec_decode_num_accepted_tokens_total"] == 0
    assert 0 < now["n_busy_slots_per_decode"] <= 1
    assert now.keys() >= {"prompt_tokens_seconds", "predicted_tokens_seconds"}
    assert 0 <= now["kv_cache_usage_ratio"] <= 1


def test_metrics_say_when_the_server_started(serve: Callable[..., Running]) -> None:
    before = int(time.time())
    server = serve()
    started = {server.get("/metrics").headers["process-start-time-unix"] for _ in range(2)}
    assert before <= int(started.pop()) <= time.time()
    assert not started


@pytest.mark.parametrize("name", ["metrics", "slots"])
def test_a_route_that_is_off(serve: Callable[..., Running], name: str) -> None:
    server = serve(**{f"{name}_route": False})
    off = server.get(f"/{name}")
    assert (off.status_code, off.json()["error"]["code"]) == (501, "unsupported_route")
    assert f"--no-{name}-route" in off.json()["error"]["message"]
    props = server.get("/props").json()
    on = {"metrics", "slots"} - {name}
    assert not props[f"endpoint_{name}"]
    assert all(props[f"endpoint_{other}"] for other in on)
    assert all(server.get(f"/{other}").status_code == 200 for other in on)


def test_llama_cpp_s_names_are_off_by_default(shared: Running) -> None:
    assert "llamacpp:" not in shared.get("/metrics").text


def test_slots_while_requests_run_and_wait(serve: Callable[..., Running]) -> None:
    server = serve(slots=2)
    free: dict[str, Any] = {"state": "free", "request": None, "prompt_tokens": 0, "computed": 0}
    free |= {
        "generated_tokens": 0,
        "most_output": None,
        "cached_tokens": 0,
        "step_tokens": 0,
        "tokens_per_second": 0,
    }
    idle = {"utilisation": 0, "tokens_per_second": 0, "prompt_tokens_per_second": 0, "step": None}
    free["engine"] = idle
    free |= {"id_task": -1, "n_ctx": 512, "speculative": False, "is_processing": False}
    free["next_token"] = [{"has_next_token": False, "n_remain": -1, "n_decoded": 0}]
    free |= {f"n_prompt_tokens{kind}": 0 for kind in ("", "_processed", "_cache")}
    expected = [{"index": index, "id": index} | free for index in (0, 1)]
    assert server.get("/slots?fail_on_no_slot=1").json() == expected
    server.executor.before_step = lambda step: server.executor.gate.clear() if step == 2 else None
    body = {"prompt": "hello", "n": 3, "stream": True, "ignore_eos": True, "max_tokens": 50}
    with server.stream("/v1/completions", body):
        server.until(lambda: server.executor.steps >= 3 and not server.executor.gate.is_set())
        first, second = server.get("/slots").json()
        none = server.get("/slots?fail_on_no_slot=1")
        now = scrape(server)
        server.executor.gate.set()
    assert (first["index"], second["index"]) == (0, 1)
    assert (none.status_code, none.json()["error"]["code"]) == (503, "no_slot")
    step = {"kind": "decode", "prompt_tokens": 0, "decodes": 2, "sequences": 2}
    for slot in (first, second):
        assert slot["is_processing"] is True
        assert (slot["id"], slot["id_task"]) == (slot["index"], slot["request"])
        next_token = slot["next_token"][0]
        assert next_token["n_decoded"] == slot["generated_tokens"]
        assert next_token["n_remain"] == 50 - slot["generated_tokens"]
        assert slot["n_prompt_tokens_processed"] + slot["n_prompt_tokens_cache"] == 5
        assert slot["state"] == "generating"
        assert slot["prompt_tokens"] == 5
        assert slot["generated_tokens"] >= 2
        assert slot["step_tokens"] == 1
        assert slot["tokens_per_second"] > 0
        engine = slot["engine"]
        assert engine["step"] == step
        assert 0 < engine["utilisation"] <= 1
        assert engine["tokens_per_second"] > 0 and engine["prompt_tokens_per_second"] > 0
    assert first["request"] != second["request"]
    assert (now["heddle_slots"], now["heddle_slots_busy"]) == (2, 2)
    assert now["heddle_device_memory_bytes/free"] == MEMORY.free
    assert now["heddle_device_memory_bytes/total"] == MEMORY.total
    assert now["heddle_queue_depth"] == 1
    assert now["heddle_kv_pages_used"] == 2
    assert now["heddle_kv_pages"] == 64
    assert 0 < now["heddle_utilisation"] <= 1
    assert now["heddle_tokens_per_second"] > 0 and now["heddle_prompt_tokens_per_second"] > 0
    assert now["heddle_slot_tokens_per_second/0"] > 0 and now["heddle_slot_tokens_per_second/1"] > 0


def test_a_device_may_not_tell_its_memory(serve: Callable[..., Running]) -> None:
    server = serve()
    server.executor.device_memory = None
    assert not any("device_memory" in name for name in scrape(server))
    [model] = server.get("/v1/models").json()["data"]
    assert model["device_memory"] is None
    server.executor.device_memory = MEMORY
    [model] = server.get("/v1/models").json()["data"]
    assert model["device_memory"] == {"free": MEMORY.free, "total": MEMORY.total}


def test_metrics_count_what_was_served(serve: Callable[..., Running]) -> None:
    server = serve()
    empty = scrape(server)
    assert empty["heddle_requests_total/length"] == 0
    for _ in range(2):
        body = {"prompt": "hello", "max_tokens": 4, "n": 2, "ignore_eos": True}
        server.post("/v1/completions", body)
    now = scrape(server)
    assert now["heddle_requests_total/length"] == 4
    assert now["heddle_requests_total/stop"] == 0
    assert now["heddle_prompt_tokens_total"] == 20
    assert now["heddle_generated_tokens_total"] == 16
    assert now["heddle_time_to_first_token_seconds_count"] == 4
    assert now["heddle_inter_token_seconds_count"] == 12
    assert now["heddle_preemptions_total"] == 0
    assert now["heddle_slots_busy"] == 0
    # At first, one choice waits for the prompt of the other.
    kinds = {"prefill": 2, "decode": 6, "mixed": 1}
    assert {kind: now[f"heddle_steps_total/{kind}"] for kind in kinds} == kinds
    assert now["heddle_step_tokens_total/prompt"] == now["heddle_prompt_tokens_computed_total"]
    assert now["heddle_step_tokens_total/decode"] == 12
    assert now["heddle_step_sequences_total"] == 16
    assert now["heddle_queue_seconds_count"] == 4
    assert now["heddle_slow_steps_total"] == now["heddle_slow_waits_total/no_slot"] == 0
    assert now["heddle_step_seconds_total"] > now["heddle_compute_seconds_total"] == 0


def test_two_servers_do_not_share_metrics(serve: Callable[..., Running]) -> None:
    one, other = serve(), serve()
    one.post("/v1/completions", {"prompt": "hello", "max_tokens": 1, "ignore_eos": True})
    assert scrape(one)["heddle_requests_total/length"] == 1
    assert scrape(other)["heddle_requests_total/length"] == 0


@pytest.mark.parametrize("path", ["/health", "/nothing"])
def test_every_response_has_a_request_id(shared: Running, path: str) -> None:
    ids = {shared.get(path).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    mine = shared.get(path, headers={"x-request-id": "abc-1"})
    assert mine.headers["x-request-id"] == mine.headers["request-id"] == "abc-1"
    assert mine.headers.get_list("x-request-id") == ["abc-1"]
    long = shared.get(path, headers={"x-request-id": "a" * 129})
    assert long.headers["x-request-id"].startswith("req_")


def test_the_api_describes_itself(shared: Running) -> None:
    described = shared.get("/openapi.json").json()
    assert described["paths"].keys() >= {
        *("/v1/chat/completions", "/v1/completions", "/infill", "/tokenize", "/detokenize"),
        *("/apply_template", "/apply-template", "/v1/messages", "/v1/messages/count_tokens"),
        *("/v1/models", "/health", "/metrics", "/slots"),
    }
    body = described["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert "messages" in schema["required"]
    assert schema["additionalProperties"] is False


class Unread:
    """An answer that nobody reads."""

    def __init__(self, size: int) -> None:
        self.held = size

    def cut(self, error: BacklogError) -> None:
        self.held = 0


def test_the_metrics_of_the_backlog_are_its_cuts_and_its_bytes() -> None:
    backlog, answers = Backlog(100), [Unread(60), Unread(50)]
    for answer in answers:
        backlog.watch(answer)
    backlog.check()
    shown = {row.name: row.value(backlog) for row in BACKLOG_ROWS}
    assert shown == {"heddle_backlog_cut": 1, "heddle_backlog_bytes": 50}
