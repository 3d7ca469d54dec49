"""`heddle serve` as a process, on the default model, through the official client."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile

import httpx
import openai
import pytest

from heddle.cli import run
from patience import PATIENCE

pytestmark = pytest.mark.model

COLOURS = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def printed(model_path):  # fetched before the clock starts
    """The lines of a server that lives as long as these tests."""
    command = [sys.executable, "-m", "heddle", "serve", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"HEDDLE_SLOTS": "4"}
    ) as server:
        watchdog = threading.Timer(PATIENCE, server.kill)
        watchdog.start()
        lines = [*takewhile(lambda line: not line.startswith("ready"), server.stdout)]
        watchdog.cancel()
        assert lines, "the server ended before it was ready"
        yield lines
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=PATIENCE) == 0


@pytest.fixture(scope="module")
def address(printed):
    """Base URL of the server."""
    return to_copy(printed)[1].removesuffix("/chat/completions")


def to_copy(lines):
    """The words of the command that the server offers."""
    return shlex.split(lines[-1].removeprefix("try"))


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=address, api_key="unused", max_retries=0) as client:
        yield client


def ask(client, **options):
    options = {"messages": COLOURS, "temperature": 0, "max_tokens": 24} | options
    return client.chat.completions.create(model="smollm2-135m", **options)


def test_the_server_prints_a_request_to_copy(printed):
    _curl, url, _, header, _, body = to_copy(printed)
    name, _, value = header.partition(": ")
    answer = httpx.post(url, headers={name: value}, content=body, timeout=PATIENCE)
    assert answer.json()["choices"][0]["message"]["content"]


def test_a_chat_answer_is_about_the_question(client):
    answer = ask(client)
    assert "red" in answer.choices[0].message.content.lower()
    assert answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_and_whole_answers_are_the_same(client):
    whole = ask(client, logprobs=True, top_logprobs=3).choices[0]
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, logprobs=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.finish_reason
    assert chunks[-1].usage.completion_tokens == 24
    streamed = [
        t.logprob
        for c in chunks
        if c.choices and c.choices[0].logprobs
        for t in c.choices[0].logprobs.content
    ]
    assert streamed == [t.logprob for t in whole.logprobs.content]
    for token in whole.logprobs.content:
        assert token.logprob == token.top_logprobs[0].logprob  # greedy takes the likeliest


def test_identical_requests_at_once_give_one_answer(client):
    with ThreadPoolExecutor(8) as pool:
        greedy = list(pool.map(lambda _: ask(client).choices[0].message.content, range(8)))
        seeded = list(
            pool.map(
                lambda _: ask(client, temperature=1.0, seed=5).choices[0].message.content, range(8)
            )
        )
    assert len(set(greedy)) == 1
    assert len(set(seeded)) == 1
    assert greedy[0] != seeded[0]


def test_choices_of_one_request_differ(client):
    choices = ask(client, temperature=1.2, seed=1, n=4).choices
    assert len({choice.message.content for choice in choices}) > 1
    assert [choice.index for choice in choices] == [0, 1, 2, 3]


def test_completions_stop_where_they_are_told(client):
    def complete(**options):
        return client.completions.create(
            model="smollm2-135m",
            prompt="Monday, Tuesday, Wednesday,",
            temperature=0,
            max_tokens=12,
            **options,
        ).choices[0]

    whole = complete()
    assert whole.finish_reason == "length"
    end = whole.text[10:14]  # crosses tokens, as it happens to fall
    stopped = complete(stop=["never said", end])
    assert stopped.text == whole.text[: whole.text.index(end)]
    assert stopped.finish_reason == "stop"


def test_a_refusal_names_the_field(client):
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(client, temperature=-1)
    assert refusal.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(client, extra_body={"tempreature": 1})
    assert refusal.value.param == "tempreature"


def test_what_the_server_tells_about_itself(client, address):
    assert [model.id for model in client.models.list().data] == ["smollm2-135m"]
    root = address.removesuffix("/v1")
    assert httpx.get(f"{root}/health", timeout=PATIENCE).status_code == 200
    slots = httpx.get(f"{root}/slots", timeout=PATIENCE).json()
    assert [slot["state"] for slot in slots] == ["free"] * 4
    metrics = httpx.get(f"{root}/metrics", timeout=PATIENCE).text
    assert "heddle_generated_tokens_total" in metrics


def test_it_is_measured_beside_another_server(address, capsys):
    load = ["--streams", "1,3", "--depths", "20", "--prompt-tokens", "40", "--new-tokens", "12"]
    both = ["--url", address.removesuffix("/v1"), "--against", address]
    assert run(["bench", *both, *load, "--rounds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["peer"]["model"] == report["model"] == "smollm2-135m"
    for scenario in ("decode x1 at 20", "decode x3 at 20"):
        assert report["summary"][scenario]["ratio"]["decode_tok_s"]["median"] > 0
    for scenario in ("prompt x1 at 40", "prompt x3 at 40"):
        assert report["summary"][scenario]["heddle"]["prompt_tok_s"] > 0


def test_the_prefix_cache_is_measured(address, capsys):
    """On servers of its own, with and without the cache."""
    load = ["--requests", "10", "--rounds", "2", "--prefix-tokens", "100", "--tail-tokens", "8"]
    assert run(["bench", "prefix", *load, "--new-tokens", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["figures"]["cache on"]["hits"] >= 6
    assert report["figures"]["cache off"]["hits"] == 0
    assert report["figures"]["cache off"]["computed"] == 10 * 108
    assert report["identical"]["hits"] == 3
    assert report["burst"]["computed"] <= 100 + 8 * 8
