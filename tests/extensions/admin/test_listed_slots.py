"""`GET /slots`: what each slot computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fake_executor import MEMORY
from scraping import scrape

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running


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
