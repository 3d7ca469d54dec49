"""`GET /metrics`: names, values, and that it can be off."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from configs import server_config
from fake_executor import MEMORY
from fake_server import run_server
from heddle.engine.streaming.streams import Backlog
from heddle.extensions.metrics import vllm_names
from heddle.extensions.metrics.table import BACKLOG_ROWS, described
from heddle.state import PAGE_TOKENS
from patience import PATIENCE
from scraping import scrape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fake_server import Running
    from heddle.errors import BacklogError


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


def test_metrics_under_vllm_s_names_are_those_that_endpoint_pickers_read(
    serve: Callable[..., Running],
) -> None:
    server = serve(metric_names="vllm", slots=2, queue=8)
    server.executor.gate.clear()
    body = {"prompt": "a" * 40, "max_tokens": 4, "n": 5, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/v1/completions", body)
        server.until(lambda: server.engine.snapshot().running == 2)
        busy = vllm_samples(server)
        server.executor.gate.set()
        assert answer.result(PATIENCE).status_code == 200
    server.until(server.idle)
    now = vllm_samples(server)
    assert (busy["num_requests_running"], busy["num_requests_waiting"]) == (2, 3)
    assert (now["num_requests_running"], now["num_requests_waiting"]) == (0, 0)
    assert 0 < busy["kv_cache_usage_perc"] == busy["gpu_cache_usage_perc"] < 1
    assert now["kv_cache_usage_perc"] == 0  # cached pages are free pages
    assert now["prefix_cache_queries_total"] == now["prompt_tokens_total"] == 200
    assert 0 < now["prefix_cache_hits_total"] <= 4 * 39
    assert now["generation_tokens_total"] == 20
    assert now["request_success_total/length"] == 5
    assert now["request_success_total/abort"] == now["num_preemptions_total"] == 0
    assert now["time_to_first_token_seconds_count"] == 5
    assert now["inter_token_latency_seconds_count"] == 15
    assert now["request_queue_time_seconds_bucket/+Inf"] == 5


def test_what_pickers_read_from_labels_under_vllm_s_names(serve: Callable[..., Running]) -> None:
    server = serve(metric_names="vllm", kv_type="q8_0")
    before = time.time()
    families = text_string_to_metric_families(server.get("/metrics").text)
    samples = {sample.name: sample for family in families for sample in family.samples}
    labels = {"model_name": server.engine.model.info.id, "engine": "0"}
    lora, sizes = samples["vllm:lora_requests_info"], samples["vllm:cache_config_info"]
    adapters = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert lora.labels == labels | adapters
    assert before <= lora.value <= time.time()  # pickers take the latest sample
    assert sizes.labels == labels | {
        "block_size": str(PAGE_TOKENS),
        "num_gpu_blocks": str(server.engine.snapshot().pages_total),
        "cache_dtype": "q8_0",
        "enable_prefix_caching": "True",
    }
    assert sizes.value == 1


def vllm_samples(server: Running) -> dict[str, float]:
    """Samples under vLLM's names, without prefix and without the labels that all of them have."""
    labels = {"model_name": server.engine.model.info.id, "engine": "0"}
    found = {}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for sample in family.samples if family.name.startswith("vllm:") else ():
            assert sample.labels.items() >= labels.items()
            own = [value for name, value in sample.labels.items() if name not in labels]
            found["/".join((sample.name.removeprefix("vllm:"), *own))] = sample.value
    return found


@pytest.mark.parametrize(("name", "kind", "text"), [*vllm_names.described()], ids=lambda one: one)
def test_each_metric_under_vllm_s_names_is_exported(
    exported: Mapping[str, tuple[str, str]], name: str, kind: str, text: str
) -> None:
    assert exported[name.partition("{")[0]][0] == kind


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


def test_other_names_are_off_by_default(shared: Running) -> None:
    text = shared.get("/metrics").text
    assert "llamacpp:" not in text
    assert "vllm:" not in text


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


class Unread:
    """An answer that nobody reads."""

    def __init__(self, size: int) -> None:
        self.held = size

    def cut(self, error: BacklogError) -> None:
        self.held = 0


def test_the_metrics_of_the_backlog_are_its_cuts_and_its_bytes() -> None:
    backlog, answers = Backlog(100), [Unread(60), Unread(50)]
    for answer in answers:
        backlog.holders.add(answer)
    backlog.check()
    shown = {row.name: row.value(backlog) for row in BACKLOG_ROWS}
    assert shown == {"heddle_backlog_cut": 1, "heddle_backlog_bytes": 50}


@pytest.mark.parametrize(("name", "kind", "text"), [*described()], ids=lambda one: one)
def test_each_metric_of_the_table_is_exported(
    exported: Mapping[str, tuple[str, str]], name: str, kind: str, text: str
) -> None:
    family = name.partition("{")[0]
    assert exported[family] == (kind, text)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[str, str]]:
    """Kind and text of each metric that a server with a disk tier exports, by name."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "fake.gguf").touch()
    disk = {"prefix_cache_dir": str(folder / "cache"), "prefix_cache_disk": 5000}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = server_config(port=0, metric_names="vllm")
        with run_server(config, **disk) as server:
            lines = [line.split(" ", 3) for line in server.get("/metrics").text.splitlines()]
    named = [line[1:] for line in lines if line[0] == "#"]
    texts, kinds = (
        {name: text for mark, name, text in named if mark == which} for which in ("HELP", "TYPE")
    )
    return {name: (kinds[name], text) for name, text in texts.items()}
