"""The prefix cache as operators see it over HTTP: figures, switch, flush, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from heddle.state import PAGE_TOKENS
from patience import PATIENCE
from scraping import scrape

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_server import Running

PROMPT = "the sea is blue and the sky is as well"
STATS, SWITCH = "/v1/prefix_cache_stats", "/v1/prefix_cache"


def ask(server: Running, prompt: str = PROMPT) -> int:
    """How much of the prompt was cached."""
    body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, "seed": 1}
    usage = server.post("/v1/completions", body).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def stats(server: Running) -> dict[str, Any]:
    response = server.get(STATS)
    assert response.status_code == 200
    return response.json()


def switch(server: Running, enabled: bool) -> dict[str, Any]:
    response = server.post(SWITCH, {"enabled": enabled})
    assert response.status_code == 200
    return response.json()


def test_figures(serve: Callable[..., Running]) -> None:
    server = serve()
    nothing = dict.fromkeys(
        ("hits", "misses", "hit_rate", "len", "cached_tokens", "cached_bytes", "evictions"), 0
    ) | {"avg_hit_tokens": 0, "disk": None}
    nothing |= dict.fromkeys(("total_query_tokens", "total_hit_tokens", "total_lost_tokens"), 0)
    assert stats(server) == {"enabled": True, "capacity_bytes": 64_000} | nothing
    for prompt in (PROMPT, PROMPT, PROMPT, "xyz"):
        ask(server, prompt)
    found = 2 * (len(PROMPT) - 1)
    assert stats(server) == {
        "enabled": True,
        "hits": 2,
        "misses": 2,
        "hit_rate": 0.5,
        "len": 2,
        "cached_tokens": len(PROMPT) + 3 + 3 + 3,
        "cached_bytes": 3_000,
        "capacity_bytes": 64_000,
        "evictions": 0,
        "total_query_tokens": 3 * len(PROMPT) + 3,
        "total_hit_tokens": found,
        "total_lost_tokens": 0,
        "avg_hit_tokens": found / 2,
        "disk": None,
    }


def test_metrics_say_the_same(serve: Callable[..., Running]) -> None:
    server = serve(prefix_cache_nodes=1)
    for prompt in (PROMPT, PROMPT, "xyz"):
        ask(server, prompt)
    said, measured = stats(server), scrape(server)
    assert said["evictions"] > 0
    assert said.pop("disk") is None
    prefix = "heddle_prefix_cache_"
    for name, value in said.items():
        counted = name in {"hits", "misses", "evictions"} or name.startswith("total_")
        metric = name.removeprefix("total_") + ("_total" if counted else "")
        assert measured.pop(prefix + metric) == value
    assert not [name for name in measured if name.startswith(prefix)]


def test_figures_and_metrics_of_the_disk_tier(
    serve: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake.gguf").touch()
    settings = {"prefix_cache_dir": str(tmp_path / "cache"), "prefix_cache_disk": 5000}
    first = serve(**settings)
    ask(first)
    first.engine.close()
    server = serve(**settings)
    assert ask(server) == PAGE_TOKENS
    said, measured = stats(server)["disk"], scrape(server)
    assert said == {
        "enabled": True,
        "reason": None,
        "files": 1,
        "bytes": 104 + 4 * PAGE_TOKENS + 1000,
        "capacity_bytes": 5000,
        "hits": 1,
        "restored_tokens": PAGE_TOKENS,
        "writes": 0,
        "dropped": 0,
        "errors": 0,
    }
    del said["reason"]
    prefix = "heddle_prefix_cache_disk_"
    for name, value in said.items():
        level = name in {"enabled", "files"} or name.endswith("bytes")
        assert measured.pop(prefix + name + ("" if level else "_total")) == value
    assert not [name for name in measured if name.startswith(prefix)]
    assert server.delete(SWITCH).json()["disk"]["files"] == 0
    server.engine.close()
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["lock"]


def test_off_by_configuration(serve: Callable[..., Running]) -> None:
    server = serve(prefix_cache=False)
    said = stats(server)
    assert set(said) == {"enabled", "reason"}
    assert said["enabled"] is False
    assert "--no-prefix-cache" in said["reason"]
    assert scrape(server)["heddle_prefix_cache_enabled"] == 0
    assert switch(server, True)["enabled"] is True
    assert [ask(server), ask(server)] == [0, len(PROMPT) - 1]


def test_the_kill_switch_drops_everything_and_finds_nothing(serve: Callable[..., Running]) -> None:
    server = serve()
    ask(server)
    said = switch(server, False)
    assert said == stats(server)
    assert said["enabled"] is False
    assert "at run time" in said["reason"]
    assert [ask(server), ask(server)] == [0, 0]
    assert switch(server, True)["cached_tokens"] == 0
    assert [ask(server), ask(server)] == [0, len(PROMPT) - 1]


def test_a_flush_drops_everything_once(serve: Callable[..., Running]) -> None:
    server = serve()
    ask(server)
    response = server.delete(SWITCH)
    assert response.status_code == 200
    assert (response.json()["len"], response.json()["cached_tokens"]) == (0, 0)
    assert response.json()["misses"] == 1, "totals go on"
    assert [ask(server), ask(server)] == [0, len(PROMPT) - 1]


def test_figures_do_not_wait_for_a_step(serve: Callable[..., Running]) -> None:
    server = serve()
    body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "stream": True}
    server.executor.gate.clear()
    with server.stream("/v1/completions", body):
        assert server.executor.entered.wait(PATIENCE)
        assert stats(server)["misses"] == 1
        server.executor.gate.set()


def test_figures_that_are_just_changing_are_not_waited_for(serve: Callable[..., Running]) -> None:
    server = serve()
    with server.engine.thread._lock:
        assert stats(server) == {"enabled": True, "busy": True}
        assert "heddle_prefix_cache_hits_total" in scrape(server)
    assert "busy" not in stats(server)


def test_a_stopped_engine_has_no_cache(serve: Callable[..., Running]) -> None:
    server = serve()
    server.engine.close()
    said = stats(server)
    assert said["enabled"] is False
    assert "not running" in said["reason"]
    for refused in (server.post(SWITCH, {"enabled": True}), server.delete(SWITCH)):
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_closed"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "invalid_value", "enabled"),
        ({"enabled": "yes"}, "invalid_value", "enabled"),
        ({"enabled": 1}, "invalid_value", "enabled"),
        ({"enabled": None}, "invalid_value", "enabled"),
        ({"enabled": True, "flush": True}, "unsupported_parameter", "flush"),
        ([], "invalid_value", None),
    ],
)
def test_a_bad_body_changes_nothing(
    shared: Running, body: Any, code: str, param: str | None
) -> None:
    response = shared.post(SWITCH, body)
    assert response.status_code == 400
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == (code, param)
    assert stats(shared)["enabled"] is True


def test_the_routes_describe_themselves(shared: Running) -> None:
    described = shared.get("/openapi.json").json()
    figures = described["components"]["schemas"]["Counters"]["properties"]
    assert "total_hit_tokens" in figures
    assert all("description" in field for name, field in figures.items() if name != "enabled")
    switch = described["paths"][SWITCH]["post"]["requestBody"]["content"]["application/json"]
    assert switch["schema"]["required"] == ["enabled"]
    for path, method in ((STATS, "get"), (SWITCH, "post"), (SWITCH, "delete")):
        answers = described["paths"][path][method]["responses"]["200"]["content"]
        assert len(answers["application/json"]["schema"]["anyOf"]) == 3
