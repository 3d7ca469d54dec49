"""The command `heddle bench`: its options, its tables, its JSON."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fake_executor import FakeExecutor
from fake_peer import fake_peer, paced_client
from heddle.cli import run
from heddle.extensions.bench import servers
from heddle.extensions.bench.figures import FORMULAS
from heddle.extensions.bench.remote import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from fake_peer import FakePeer
    from heddle.config import EngineConfig
    from heddle.extensions.bench.exchange import Server

SMALL = ["--streams", "1,3", "--prompt-tokens", "40", "--new-tokens", "6", "--rounds", "2"]


def test_the_report_in_json(
    loaded: list[tuple[str, EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, "--depths", "0,50", "--slots", "4", "--json"]
    assert run(["bench", "some.gguf", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "fake"
    assert report["formulas"] == FORMULAS
    assert [row["streams"] for row in report["prompt"]] == [1, 3]
    rows = [(row["depth"], row["streams"]) for row in report["decode"]]
    assert rows == [(0, 1), (0, 3), (50, 1), (50, 3)]
    assert loaded[0][0] == "some.gguf"
    assert loaded[0][1].slots == 4


def test_the_report_as_tables(
    loaded: list[tuple[str, EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *SMALL, "--depths", "1,100"]) == 0
    out = capsys.readouterr().out
    assert "limits of 2 threads, paper, measured now" in out
    assert "compute 0 GMAC/s (by hand)" in out
    assert "threads wait for one another 3 times a step, 4.00 us each: 0.01 ms" in out
    assert "prompts of 40 tokens, medians of 2" in out
    assert "decoding 6 tokens, medians of 2" in out
    for name, formula in FORMULAS.items():
        assert f"{name} = {formula}" in out
    assert "…" not in out, "the tables fit a terminal of 80 columns"
    assert len(loaded) == 1


def test_a_device_that_counts_no_barriers_says_nothing_of_them(
    loaded: list[tuple[str, EngineConfig]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = replace(FakeExecutor.measure_limits(FakeExecutor()), barriers=0)
    monkeypatch.setattr(FakeExecutor, "measure_limits", lambda _: limits)
    assert run(["bench", *SMALL, "--depths", "0"]) == 0
    assert "wait for one another" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--streams", "1,x"], "--streams: '1,x' is not a list of integers of at least 1"),
        (["--streams", "0"], "--streams: '0' is not a list"),
        (
            ["--streams", "1,5", "--slots", "4"],
            "--streams: 5 streams need as many slots; there are 4",
        ),
        (["--depths", "-1"], "--depths: '-1' is not a list"),
        (["--peer-model", "some"], "--peer-model and --url need --against"),
        (["--url", "http://here"], "--peer-model and --url need --against"),
    ],
)
def test_bad_options_are_told_before_a_model_is_loaded(
    loaded: list[tuple[str, EngineConfig]],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    assert run(["bench", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not loaded


def test_against_a_peer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = paced_client(monkeypatch, streams=2)
    two = ["--streams", "2", "--prompt-tokens", "40", "--new-tokens", "6", "--rounds", "2"]
    with fake_peer(pace=pace) as heddle, fake_peer(pace=pace) as peer:
        places = ["--url", heddle.url, "--against", peer.url + "/v1"]
        assert run(["bench", *places, *two, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert run(["bench", *places, *two, "--depths", "20,30"]) == 0
        table = capsys.readouterr().out
    assert report["peer"] == {"url": peer.url, "model": "some-model"}
    scenarios = ["decode x2 at 128", "prompt x2 at 40"]
    assert list(report["summary"]) == scenarios
    for scenario in scenarios:
        assert [len(rounds) for rounds in report["results"][scenario].values()] == [2, 2]
        ratio = report["summary"][scenario]["ratio"]["ttft_p50_ms"]
        assert ratio["min"] <= ratio["median"] <= ratio["max"]
    assert "decode x2 at 20" in table
    assert "decode x2 at 30" in table
    assert all(len(line) <= 80 for line in table.splitlines())
    assert [body["model"] for body in peer.bodies] == ["some-model"] * len(heddle.bodies)


def test_a_peer_that_fails_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_peer() as heddle, fake_peer("refusing") as peer:
        assert run(["bench", "--url", heddle.url, "--against", peer.url, *SMALL]) == 2
    err = capsys.readouterr().err
    assert err.startswith("heddle: peer answered 500")
    assert err.count("\n") == 1


def test_a_peer_without_the_model_is_told_before_a_server_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with fake_peer() as peer:
        arguments = ["--against", peer.url, "--peer-model", "other"]
        assert run(["bench", "no-such-model", *arguments]) == 2
    assert "peer has no model 'other'" in capsys.readouterr().err


def test_a_heddle_that_does_not_start_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_HOME", str(tmp_path))
    with fake_peer() as peer:
        assert run(["bench", str(tmp_path / "none.gguf"), "--against", peer.url]) == 2
    err = capsys.readouterr().err
    assert "heddle did not start: heddle:" in err
    assert "none.gguf" in err


PREFIX = ["--requests", "6", "--rounds", "2", "--slots", "2", "--prefix-tokens", "20"]
PREFIX += ["--tail-tokens", "4", "--new-tokens", "2"]


def test_prefixes_beside_a_peer(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_peer(remembers=True) as heddle, fake_peer() as peer:
        places = ["--url", heddle.url, "--against", peer.url]
        assert run(["bench", "prefix", *places, *PREFIX, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert run(["bench", "prefix", *places, *PREFIX]) == 0
        table = capsys.readouterr().out
    assert report["load"]["clients"] == 2
    assert report["figures"]["heddle"]["requests"] == 6
    assert report["figures"]["peer"]["hits"] is None
    assert report["identical"]["hits"] == 3
    assert report["burst"]["requests"] == 8
    assert report["times_better"]["rate"]["all"] > 0
    lines = {line[:16].strip(): line for line in table.splitlines()}
    assert lines["hits"].split() == ["hits", "6", "unknown"]
    assert "(" in lines["latency p50, ms"]
    assert "4 times in a row: hits 4" in table, "the peer remembers the run before"
    for name, formula in report["formulas"].items():
        assert f"{name} = {formula}" in table


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rounds", "7", "--requests", "6"], "--rounds: 7 is more than the 6 requests"),
        (["--url", "http://here"], "--peer-model and --url need --against"),
        (["--shared", "1.5"], "'--shared'"),
        (["--slots", "0"], "--slots: slots must be at least 1"),
        (["--against", "http://127.0.0.1:9"], "peer cannot be reached"),
    ],
)
def test_bad_options_of_prefixes(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert run(["bench", "prefix", *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[EngineConfig]]:
    """Lets commands start fake peers as their own servers. Returns the settings of the servers."""

    def replace_servers(
        peer_for: Callable[[EngineConfig], AbstractContextManager[FakePeer]],
    ) -> list[EngineConfig]:
        started: list[EngineConfig] = []

        @contextmanager
        def heddle_server(model: str, config: EngineConfig) -> Iterator[Server]:
            started.append(config)
            with peer_for(config) as peer:
                yield connect("heddle", peer.url)

        monkeypatch.setattr(servers, "heddle_server", heddle_server)
        return started

    return replace_servers


def test_two_slots_are_the_default_for_prefixes(
    starting: Callable[..., list[EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three servers are started: with the cache, without it, and with a slot for each at once."""
    started = starting(lambda config: fake_peer(remembers=config.prefix_cache))
    load = [*PREFIX[:4], *PREFIX[6:], "--prefix-cache-dir", "/some/where", "--json"]
    assert run(["bench", "prefix", "some.gguf", *load]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(each.slots, each.prefix_cache, each.prefix_cache_dir) for each in started] == [
        (2, True, "/some/where"),
        (2, False, ""),
        (8, True, ""),
    ]
    assert list(report["figures"]) == ["cache on", "cache off"]
    assert report["burst"]["computed"] is not None


LOAD = ["--requests", "6", "--concurrency", "2", "--max-tokens", "9", "--prompt-words", "8"]


def test_a_load_on_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_peer("echoing") as peer:
        load = ["bench", "load", peer.url + "/v1", *LOAD, "--label", "night"]
        assert run([*load, "--external", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert run([*load, "--force", "--baseline-tps", "1e9", "--model", "some-model"]) == 5
        table = capsys.readouterr().out
    assert (report["label"], report["verdict"], report["exit_code"]) == ("night", "good", 0)
    [result] = report["results"]
    assert (result["url"], result["model"], result["slots"]) == (peer.url, "some-model", None)
    assert (result["answered"], result["tokens"], result["ratio"]) == (6, 54, None)
    assert set(result["latency"]) == set(result["itl"]) == {"p50", "p95", "p99", "max"}
    assert set(result["memory"]) == {"before", "peak", "after"}, "the peer is this process"
    lines = {line[:14].strip(): line for line in table.splitlines()}
    assert lines["ratio"].split() == ["ratio", "0.00"]
    assert "6 of 6 answers repeat the canary of their prompt" in table
    assert table.startswith("night: some-model at")
    assert table.endswith("verdict: below baseline\n")
    for name, formula in report["formulas"].items():
        assert f"{name} = {formula}" in table


def test_a_load_on_a_server_that_mixes_up_requests(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_peer("leaking") as peer:
        assert run(["bench", "load", peer.url, *LOAD, "--external"]) == 6
    assert "holds the canary of prompt" in capsys.readouterr().out


@pytest.mark.parametrize("extra", [["--protect", "{port}"], ["--protect", ""], []])
def test_servers_that_may_not_be_loaded_get_nothing(
    capsys: pytest.CaptureFixture[str], extra: list[str]
) -> None:
    with fake_peer() as peer:
        port = peer.url.rpartition(":")[2]
        arguments = [each.format(port=port) for each in extra]
        arguments += ["--external"] if "{port}" in extra else []
        assert run(["bench", "load", peer.url, *LOAD, *arguments]) == 2
    assert ("is protected" if "{port}" in extra else "add --external") in capsys.readouterr().err
    assert not peer.bodies


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["http://127.0.0.1:8081", "--external"], "is protected by --protect 8081"),
        (["http://127.0.0.1:9", "--slots", "1,2", "--external"], "--slots starts servers"),
        (["some.gguf", "--model", "m"], "--model names a model of the server at URL"),
        (["some.gguf", "--slots", "1,x"], "--slots: '1,x' is not a list"),
        (["some.gguf", "--baseline-tps", "0"], "--baseline-tps: 0 is not above 0"),
        (["some.gguf", "--slots", "1,2", "--targets", "2=2"], "--targets: '2=2' is not a list"),
        (["some.gguf", "--slots", "1,2", "--targets", "2:-1"], "--targets: '2:-1' is not a list"),
        (["some.gguf", "--slots", "2", "--targets", "2:2"], "--slots has no server with 1"),
        (["some.gguf", "--slots", "1,2", "--targets", "4:2"], "--slots has no server with 4"),
        (["some.gguf", "--targets", "2:2"], "--slots has no server with 1"),
        (["some.gguf", "--slots", "1,9", "--targets", "9:2"], "8 requests at once do not fill 9"),
    ],
)
def test_bad_options_of_loads(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert run(["bench", "load", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_sweep_over_slots_starts_a_server_for_each(
    starting: Callable[..., list[EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    started = starting(lambda _: fake_peer("echoing"))
    sweep = ["--slots", "1,4", "--queue", "0", "--threads", "3", "--json"]
    assert run(["bench", "load", "some.gguf", *LOAD, *sweep]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [result["slots"] for result in report["results"]] == [1, 4]
    assert [(each.slots, each.queue, each.threads) for each in started] == [(1, 2, 3), (4, 2, 3)]


def test_a_sweep_is_judged_by_its_targets(
    starting: Callable[..., list[EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    starting(lambda _: fake_peer("echoing"))
    load = ["bench", "load", "some.gguf", *LOAD, "--slots", "1,2"]
    assert run([*load, "--targets", "2:9000"]) == 7
    table = capsys.readouterr().out
    assert ", target 9000\nverdict: below target\n" in table
    assert run([*load, "--targets", "2:0", "--json"]) == 0
    [scaling] = json.loads(capsys.readouterr().out)["scalings"]
    assert (scaling["slots"], scaling["target"], scaling["met"]) == (2, 0.0, True)
    assert run([*load, "--targets", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scalings"] == []
    run([*load, "--json"])
    assert json.loads(capsys.readouterr().out)["scalings"][0]["target"] == 1.7


STRESS = ["--requests", "8", "--slots", "2", "--queue", "1", "--max-tokens", "3"]


def test_a_stress_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_peer("echoing") as peer:
        stress = ["bench", "stress", peer.url, *STRESS, "--cancelled", "0", "--external"]
        assert run([*stress, "--malformed", "0", "--json", "--growth", "9"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert run([*stress, "--malformed", "0.5"]) == 1
        table = capsys.readouterr().out
    assert (report["answered"], report["cancelled"], report["faults"]) == (8, 0, [])
    assert (report["stress"]["running"], report["stress"]["waiting"]) == (2, 1)
    assert len(report["vitals"]) == 3
    assert report["isolation"]["answers"] == 8
    assert "     4 malformed" in table
    assert "fault: request" in table
    assert table.splitlines()[-1] == f"{table.count('fault: ')} faults"


def test_a_stress_of_servers_of_its_own(
    starting: Callable[..., list[EngineConfig]], capsys: pytest.CaptureFixture[str]
) -> None:
    started = starting(lambda one: fake_peer("echoing" if one.prefix_cache else "leaking"))
    requests = ["--requests", "8", "--cancelled", "0", "--malformed", "0"]
    assert run(["bench", "stress", "some.gguf", *requests]) == 6
    assert "gets another answer alone" in capsys.readouterr().out
    assert [(each.slots, each.queue, each.prefix_cache) for each in started] == [
        (4, 8, True),
        (1, 8, False),
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["http://127.0.0.1:8081"], "is protected by --protect 8081"),
        (["http://127.0.0.1:9"], "add --external"),
        (["--cancelled", "0.8", "--malformed", "0.3"], "are more than all requests together"),
        (["some.gguf", "--model", "m"], "there is no URL"),
    ],
)
def test_bad_options_of_a_stress(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert run(["bench", "stress", *arguments]) == 2
    assert told in capsys.readouterr().err
