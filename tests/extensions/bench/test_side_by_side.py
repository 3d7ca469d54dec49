"""Alternating rounds on two fake peers, and ratios of known rounds."""

from __future__ import annotations

import pytest

from fake_peer import fake_peer, paced_client
from heddle.errors import ConfigError, PeerError
from heddle.extensions.bench import side_by_side
from heddle.extensions.bench.exchange import Server
from heddle.extensions.bench.figures import Stream
from heddle.extensions.bench.remote import connect
from heddle.extensions.bench.side_by_side import (
    Scenario,
    alternate,
    most_other_work,
    summarise,
    table,
)

DECODE = Scenario(streams=2, prompt=5, new=4)
PROMPT = Scenario(streams=2, prompt=9, new=1)


def test_both_get_the_same_load_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    pace = paced_client(monkeypatch, streams=2)
    with fake_peer(pace=pace) as one, fake_peer(pace=pace) as other:
        servers = [connect("one", one.url), connect("other", other.url)]
        scenarios, results = alternate(servers, [DECODE, PROMPT], 3, note=said.append)
    assert scenarios == [DECODE, PROMPT]
    for peer in (one, other):
        lengths = [(len(body["prompt"]), body["max_tokens"]) for body in peer.bodies]
        assert lengths == [(5, 4), (5, 4), (9, 1), (9, 1)] * (1 + 3), "a trial, then rounds"
    prompts = [sorted(body["prompt"] for body in peer.bodies) for peer in (one, other)]
    assert prompts[0] == prompts[1]
    assert len({tuple(prompt) for prompt in prompts[0]}) == 4 * 4, "never the same twice"
    turns = [line.rpartition(", ")[2] for line in said if DECODE.name in line][1:]
    assert turns == ["one", "other", "other", "one", "one", "other"]
    assert list(results) == ["decode x2 at 5", "prompt x2 at 9"]
    for scenario in (DECODE, PROMPT):
        for rounds in results[scenario.name].values():
            assert len(rounds) == 3
            assert all(metrics[key] > 0 for metrics in rounds for key in scenario.headline)


@pytest.mark.parametrize("enough", [1, 2, 4, 64])
def test_new_tokens_are_doubled_until_streams_overlap(
    monkeypatch: pytest.MonkeyPatch, enough: int
) -> None:
    """On `slow` the second of two streams begins when the first has made 2 * enough tokens."""

    def complete(server: Server, prompts: list[list[int]], new: int) -> list[Stream]:
        late = 2 * enough if server.name == "slow" else 0
        begins = [0] + [late] * (len(prompts) - 1)
        moments = [tuple(float(begin + token) for token in range(1, new + 1)) for begin in begins]
        return [Stream(0.0, arrivals, 5, new) for arrivals in moments]

    monkeypatch.setattr(side_by_side, "complete", complete)
    monkeypatch.setattr(side_by_side, "_SETTLE_SECONDS", 0)
    servers = [Server("quick", "http://quick", "m"), Server("slow", "http://slow", "m")]
    if enough == 64:
        with pytest.raises(
            ConfigError, match="decode x2 at 5: the streams hardly run at the same time"
        ):
            alternate(servers, [DECODE], 1)
        return
    [scenario], results = alternate(servers, [DECODE], 2)
    assert scenario.new == {1: 8, 2: 16, 4: 32}[enough]
    assert len(results[DECODE.name]["slow"]) == 2


def test_a_peer_that_fails_ends_it() -> None:
    with fake_peer() as one, fake_peer("ending early") as other:
        servers = [connect("one", one.url), connect("other", other.url)]
        with pytest.raises(PeerError, match="other ended a stream early"):
            alternate(servers, [DECODE], 3)


def test_no_round_begins_that_would_end_too_late() -> None:
    with fake_peer() as peer:
        _, results = alternate([connect("one", peer.url)], [PROMPT], 50, seconds=0)
    assert len(results[PROMPT.name]["one"]) == 1


def test_ratios_are_of_pairs_from_one_round() -> None:
    ours = [{"prompt_tok_s": rate, "other_work": 0.3} for rate in (10.0, 40.0, 90.0)]
    theirs = [{"prompt_tok_s": rate} for rate in (10.0, 20.0, 30.0)]
    summary = summarise({PROMPT.name: {"heddle": ours, "peer": theirs}})
    assert summary[PROMPT.name]["heddle"]["prompt_tok_s"] == 40.0
    assert summary[PROMPT.name]["peer"]["prompt_tok_s"] == 20.0
    ratio = {"median": 2.0, "min": 1.0, "max": 3.0}
    assert summary[PROMPT.name]["ratio"] == {"prompt_tok_s": ratio}
    assert table(summary, [PROMPT]).splitlines()[1].split() == [
        *("prompt", "x2", "at", "9", "40.0", "20.0", "2.00", "(1.00", "to", "3.00)"),
    ]


def test_there_is_no_ratio_to_a_gap_of_zero() -> None:
    rounds = {"decode": {"one": [{"itl_p50_ms": 1.0}], "other": [{"itl_p50_ms": 0.0}]}}
    assert summarise(rounds)["decode"]["ratio"] == {}


def test_each_run_has_prompts_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = paced_client(monkeypatch, streams=2)
    with fake_peer(pace=pace) as peer:
        for _ in range(2):
            alternate([connect("one", peer.url)], [PROMPT], 1)
    prompts = {tuple(body["prompt"]) for body in peer.bodies}
    assert len(prompts) == 2 * 2 * 2, "two runs of a trial and a round, two streams each"


def test_one_server_alone_has_no_ratio() -> None:
    summary = summarise({PROMPT.name: {"heddle": [{"prompt_tok_s": 5.0}]}})
    assert "ratio" not in summary[PROMPT.name]
    assert "ratio" not in table(summary, [PROMPT])


def test_other_work_is_the_most_of_all_rounds() -> None:
    rounds = {"a": [{"x": 1.0, "other_work": 0.1}, {"x": 1.0, "other_work": 0.4}], "b": [{"x": 1}]}
    assert most_other_work({"load": rounds}) == 0.4  # type: ignore[dict-item]
    assert most_other_work({"load": {"b": [{"x": 1.0}]}}) is None
