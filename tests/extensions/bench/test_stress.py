"""Stress on the default model over a socket in this process, and what a run shows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fake_peer import fake_peer
from heddle.config import EngineConfig
from heddle.engine import Engine
from heddle.extensions.bench import stress as stress_module
from heddle.extensions.bench import vitals
from heddle.extensions.bench.exchange import Server
from heddle.extensions.bench.isolation import canary_prompts
from heddle.extensions.bench.malformed import malformed_requests
from heddle.extensions.bench.remote import connect
from heddle.extensions.bench.stress import Stress, StressRun, compare_with_solo, run_stress
from heddle.extensions.bench.stress_report import StressReport
from heddle.extensions.bench.vitals import Vitals, read_vitals
from live_server import live_server

if TYPE_CHECKING:
    from pathlib import Path


SHORT = Stress(running=4, waiting=8, requests=45, malformed=1 / 3, max_tokens=6, prompt_words=24)
IDLE = Vitals(slots=0, queued=0, pages=0, tasks=3, backlog_bytes=0, files=9, resident=1000)


def silent(_: str) -> None:
    """Note nothing."""


def report_of(run: StressRun) -> StressReport:
    return StressReport("model", "url", {}, SHORT, run)


@pytest.mark.model
def test_nothing_is_left_after_a_stress(model_path: Path) -> None:
    """The short form of `heddle bench stress`, which also measures memory, in another process."""
    settings = EngineConfig(slots=4, queue=8, context=512, kv_cache=48 << 20)
    with Engine.load(str(model_path), settings) as engine, live_server(engine) as live:
        server = connect("heddle", live.url)
        run = run_stress(server, SHORT, silent)
        engine.set_prefix_cache(False)  # so that nothing computed in company is found again
        compare_with_solo(server, SHORT, run, silent)
    report = report_of(run)
    assert report.faults() == []
    assert report.exit_code == 0
    assert len(run.texts) - run.late == 45 - 15 - 14
    assert run.statuses.keys() == malformed_requests(server).keys(), "each kind once"
    assert all(status.startswith("4") for counts in run.statuses.values() for status in counts)
    for held in run.vitals:
        assert (held.slots, held.queued, held.pages) == (0, 0, 0)
        assert held.tasks == run.vitals[0].tasks > 0


def test_the_kinds_of_requests_are_as_many_as_asked_for() -> None:
    kinds = Stress(requests=1000).kinds()
    counts = {kind: kinds.count(kind) for kind in ("answer", "cancel", "malformed")}
    assert counts == {"answer": 600, "cancel": 300, "malformed": 100}
    assert kinds == Stress(requests=1000).kinds()
    lengths = [len(prompt.text.split()) for prompt in Stress(requests=1000).prompts()]
    assert min(lengths) == 4
    assert 140 < max(lengths) < 160 + 16


def test_a_request_is_the_same_every_time() -> None:
    server = Server("server", "http://here", "m")
    [prompt] = canary_prompts("seed", [4], [""])
    bodies = [json.loads(SHORT.body(server, index, prompt)) for index in range(20)]
    assert bodies == [json.loads(SHORT.body(server, index, prompt)) for index in range(20)]
    assert {body["stream"] for body in bodies} == {True, False}
    assert {body["temperature"] for body in bodies} == {0, 0.9}
    assert {body["max_tokens"] for body in bodies} == set(range(1, 7))


def run_with(**changes: Any) -> StressRun:
    return replace(StressRun(texts={0: "so"}, vitals=[IDLE, IDLE, IDLE]), **changes)


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"slots": 1}, "1 slots more than before are held after the second half"),
        ({"queued": 2}, "2 queued more than before"),
        ({"pages": 5}, "5 pages more than before"),
        ({"tasks": 4}, "1 tasks more than before"),
        ({"backlog_bytes": 70}, "70 backlog_bytes more than before"),
        ({"files": 12}, "3 files more than before"),
        ({"resident": 1021}, "resident memory grew by 2.1% in the second half"),
    ],
)
def test_what_is_left_is_a_fault(held: dict[str, float], told: str) -> None:
    report = report_of(run_with(vitals=[IDLE, IDLE, replace(IDLE, **held)]))
    [fault] = report.faults()
    assert told in fault
    assert report.exit_code == 1


def test_less_than_before_and_what_is_unknown_are_no_faults() -> None:
    for end in (replace(IDLE, files=2, resident=900), replace(IDLE, resident=1019), Vitals()):
        assert report_of(run_with(vitals=[IDLE, IDLE, end])).exit_code == 0


def test_mixed_up_answers_are_worse_than_faults() -> None:
    canary = SHORT.prompts()[7].canary
    for run in (run_with(different=[0]), run_with(parts={3: f"so {canary}"}, faults=["late"])):
        assert report_of(run).exit_code == 6
    assert "request 0 gets another answer alone" in report_of(run_with(different=[0])).faults()


def test_a_peer_that_fails_on_malformed_requests() -> None:
    stress = replace(SHORT, requests=12, cancelled=0.0)
    with fake_peer("echoing") as peer:
        run = run_stress(connect("peer", peer.url), stress, silent)
    assert run.vitals == [Vitals()] * 3, "it has no metrics, and its process is unknown"
    assert len(run.texts) == 8
    told = sorted(fault.partition("malformed, ")[2] for fault in run.faults)
    kinds = ("an array", "nested deeply", "not JSON", "not UTF-8")
    assert told == [f"{kind}) got status 500" for kind in kinds]
    assert report_of(run).exit_code == 1


def test_a_peer_that_never_answers_a_malformed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer waits for a body that does not arrive."""
    monkeypatch.setattr(stress_module, "MALFORMED_SECONDS", 0.05)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\n"
    monkeypatch.setattr(stress_module, "malformed_requests", lambda server: {"waits": head})
    stress = replace(SHORT, requests=2, cancelled=0.0, malformed=1.0)
    with fake_peer("echoing") as peer:
        run = run_stress(connect("peer", peer.url), stress, silent)
    assert [fault.partition(": ")[2] for fault in run.faults] == ["peer did not answer in 0 s"] * 2


def test_a_peer_that_stays_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress_module, "REFUSED_SECONDS", 0.0)
    stress = replace(SHORT, requests=4, cancelled=0.0, malformed=0.0)
    with fake_peer("full") as peer:
        run = run_stress(connect("peer", peer.url), stress, silent)
    assert len(run.faults) == 4
    assert all("peer answered 503: " in fault for fault in run.faults)


def test_a_peer_that_fails_when_requests_are_alone_and_clients_who_come_too_late() -> None:
    stress = replace(SHORT, requests=6, cancelled=1.0, malformed=0.0)
    with fake_peer("echoing") as peer:
        server = connect("peer", peer.url)
        run = run_stress(server, stress, silent)
        assert len(run.texts) == run.late
        assert len(run.parts) == 6 - run.late
        run.texts[5] = "so"
        peer.manner = "refusing"
        compare_with_solo(server, stress, run, silent)
    assert run.different == []
    assert any("request 5 (alone): peer answered 500" in fault for fault in run.faults)


def test_metrics_of_several_models_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# HELP heddle_slots_busy Busy.\n"
    text += "".join(f'heddle_slots_busy{{model="{name}"}} 2.0\n' for name in "ab")
    text += "heddle_server_tasks 5.0\nprocess_open_fds 7.0\n"
    monkeypatch.setattr(vitals, "ask", lambda server, path: text.encode())
    known = read_vitals(Server("server", "http://here", "m"))
    assert known == Vitals(slots=4.0, tasks=5.0)
    assert known.as_texts() | {"slots": "4", "pages": "unknown"} == known.as_texts()


def test_a_peer_whose_answers_depend_on_the_others() -> None:
    stress = replace(SHORT, requests=4, cancelled=0.0, malformed=0.0)
    with fake_peer("leaking") as peer:
        server = connect("peer", peer.url)
        run = run_stress(server, stress, silent)
        compare_with_solo(server, stress, run, silent)
    assert run.different
    assert StressReport("model", "url", {}, stress, run).exit_code == 6


@pytest.mark.parametrize("text", ["<html>{", "heddle_slots_busy many", "heddle_slots_busy{"])
def test_metrics_of_another_form_are_no_vitals(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "ask", lambda server, path: text.encode())
    assert read_vitals(Server("server", "http://here", "m")) == Vitals()
