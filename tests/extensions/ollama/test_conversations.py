"""`/api/chat` and `/api/generate` in Ollama's shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from fake_executor import solo_output
from fake_model import FakeTemplate, FakeTokenizer, text_of
from heddle.sampling_params import SamplingParams
from heddle.server.generate.chat import joined_tokens
from heddle.server.http.hints import HEADER
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_server import Running

ASKED: list[Any] = [{"role": "user", "content": "hello"}]
FIXED = {"seed": 1, "ignore_eos": True, "num_predict": 8}
CHAT = {"model": "fake", "messages": ASKED, "options": FIXED}
PROMPT = {"model": "fake", "prompt": "hello", "options": FIXED}
ONCE = {"stream": False}


class Client:
    """A client of the server for tests that leave it as they found it, with one connection."""

    def __init__(self, running: Running) -> None:
        self.engine = running.engine
        self.http = httpx.Client(base_url=running.url, timeout=PATIENCE)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body)


@pytest.fixture(scope="module")
def ollama(shared: Running) -> Iterator[Client]:
    client = Client(shared)
    with client.http:
        yield client


def said(prompt: list[int], tokens: int = 8) -> str:
    params = SamplingParams(seed=1, max_tokens=tokens, ignore_eos=True)
    return text_of(solo_output(prompt, params, 512))


def chat_prompt(*messages: dict[str, str]) -> list[int]:
    return FakeTokenizer().encode(FakeTemplate().render(messages or ASKED))


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("path", "body", "text_in"),
    [
        ("/api/chat", CHAT, lambda one: one["message"]["content"]),
        ("/api/generate", PROMPT, lambda one: one["response"]),
    ],
)
def test_a_stream_says_what_one_object_says(
    ollama: Client, path: str, body: dict[str, Any], text_in: Callable[[Any], str]
) -> None:
    whole = ollama.post(path, body | ONCE)
    assert whole.headers["content-type"] == "application/json"
    answer = whole.json()
    assert text_in(answer) == said(chat_prompt())
    streamed = ollama.post(path, body)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    *pieces, last = lines(streamed.text)
    assert "".join(map(text_in, pieces)) == text_in(answer)
    assert not any(piece["done"] for piece in pieces)
    assert text_in(last) == ""
    for end in (answer, last):
        assert (end["done"], end["done_reason"], end["model"]) == (True, "length", "fake")
        assert (end["prompt_eval_count"], end["eval_count"]) == (len(chat_prompt()), 8)
        assert end["total_duration"] >= end["prompt_eval_duration"] > 0
        assert end["total_duration"] >= end["load_duration"] > 0
        assert isinstance(end["eval_duration"], int)


@pytest.mark.parametrize("model", ["fake:latest", "best", "best:latest", "gpt:latest", "gpt"])
def test_names_have_a_tag_or_none(serve: Callable[..., Running], model: str) -> None:
    server = serve(alias=("best", "gpt:latest"))
    answer = server.post("/api/chat", CHAT | ONCE | {"model": model})
    assert (answer.status_code, answer.json()["model"]) == (200, model)


@pytest.mark.parametrize("model", ["other", "other:latest", ":latest", "fake:7b"])
def test_an_unknown_model(ollama: Client, model: str) -> None:
    answer = ollama.post("/api/generate", PROMPT | {"model": model})
    assert answer.status_code == 404
    assert answer.json()["error"].startswith(f"model {model!r} not found")


def test_system_and_context(ollama: Client) -> None:
    first = ollama.post("/api/generate", PROMPT | ONCE | {"system": "short"}).json()
    told = chat_prompt({"role": "system", "content": "short"}, *ASKED)
    assert first["response"] == said(told)
    *_, last = lines(ollama.post("/api/generate", PROMPT | {"system": "short"}).text)
    assert last["context"] == first["context"]
    assert first["context"][: len(told)] == told
    assert len(first["context"]) == len(told) + 8
    second = ollama.post("/api/generate", PROMPT | ONCE | {"context": first["context"]}).json()
    assert second["response"] == said(first["context"] + chat_prompt())


@pytest.mark.parametrize(
    ("before", "tokens", "joined"),
    [([1, 5], [1, 7], [1, 5, 7]), ([1, 5], [7], [1, 5, 7]), ([], [1, 7], [1, 7])],
)
def test_a_context_has_one_bos(before: list[int], tokens: list[int], joined: list[int]) -> None:
    assert joined_tokens(before, tokens, 1) == joined


def test_a_raw_prompt_goes_as_it_is(ollama: Client) -> None:
    answer = ollama.post("/api/generate", PROMPT | ONCE | {"raw": True}).json()
    assert answer["response"] == said(FakeTokenizer().encode("hello"))
    assert "context" not in answer


def test_a_suffix(ollama: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ollama.post("/api/generate", PROMPT | {"suffix": "end"}).status_code == 400
    monkeypatch.setattr(FakeTokenizer, "fills_in", True)
    answer = ollama.post("/api/generate", PROMPT | ONCE | {"suffix": "end"}).json()
    assert answer["response"] == said(FakeTokenizer().encode_fill_in("hello", "end"))


def test_the_last_message_is_continued(ollama: Client) -> None:
    begun = {"role": "Assistant", "content": "well"}
    answer = ollama.post("/api/chat", CHAT | ONCE | {"messages": [*ASKED, begun]}).json()
    assert answer["prompt_eval_count"] == len("user- hello.\nassistant- well")


def test_logprobs(ollama: Client) -> None:
    body = CHAT | {"logprobs": True, "top_logprobs": 2}
    whole = ollama.post("/api/chat", body | ONCE).json()["logprobs"]
    streamed = [
        one
        for line in lines(ollama.post("/api/chat", body).text)
        for one in line.get("logprobs", ())
    ]
    assert whole == streamed
    assert len(whole) == 8
    assert all(len(one["top_logprobs"]) == 2 for one in whole)
    assert {"token", "logprob", "bytes"} <= whole[0].keys()
    assert "logprobs" not in ollama.post("/api/chat", CHAT | ONCE).json()


def test_options_are_sampling_parameters(ollama: Client) -> None:
    def answer(**options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = ollama.post(
            "/api/chat", CHAT | ONCE | {"options": {"seed": 3} | options}
        ).json()
        return answer

    assert answer(num_predict=-2)["done_reason"] == "stop"
    assert answer(num_predict=2, ignore_eos=True)["eval_count"] == 2
    whole = answer(num_predict=6, ignore_eos=True)["message"]["content"]
    cut = answer(num_predict=6, ignore_eos=True, stop=[whole[2:4]])
    assert (cut["message"]["content"], cut["done_reason"]) == (whole[:2], "stop")
    random = {answer(num_predict=6, ignore_eos=True, seed=-1)["message"]["content"] for _ in "1234"}
    assert len(random) > 1


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", PROMPT)])
def test_parameters_beside_options_act_as_in_options(
    ollama: Client, path: str, body: dict[str, Any]
) -> None:
    """The provider `ollama-ai-provider-v2` of the Vercel AI SDK sends them there."""

    def answer(options: dict[str, Any], **fields: Any) -> dict[str, Any]:
        whole = ollama.post(path, body | ONCE | {"options": options} | fields).json()
        assert not whole.keys() & {"error"}, whole
        del whole["created_at"]
        return {name: value for name, value in whole.items() if "duration" not in name}

    seed = {"seed": 3, "ignore_eos": True}
    within = {"temperature": 0.5, "top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": 1.5}
    expected = answer(seed | within | {"num_predict": 6, "stop": ["zz"]})
    assert answer(seed, **within, max_tokens=6, stop="zz") == expected
    assert answer(seed, **within, max_output_tokens=6, stop=["zz"]) == expected
    assert answer(seed | within | {"num_predict": 6}, **within, max_tokens=6) == expected
    assert answer({"num_predict": 3}, temperature=0)["eval_count"] <= 3


def test_parameters_that_differ_from_options(ollama: Client) -> None:
    differing: list[dict[str, Any]] = [
        {"options": {"temperature": 1}, "temperature": 0},
        {"options": {"num_predict": 1}, "max_tokens": 2},
        {"max_tokens": 1, "max_output_tokens": 2},
    ]
    for fields in differing:
        refused = ollama.post("/api/chat", CHAT | fields)
        assert refused.status_code == 400
        assert "differ; send one of them" in refused.json()["error"]


def test_the_window_of_the_penalty_is_that_of_ollama(serve: Callable[..., Running]) -> None:
    server, seen = serve(slots=1), []
    for options in ({"repeat_penalty": 1.1}, {"repeat_penalty": 1.1, "repeat_last_n": 5}, {}):
        server.post("/api/chat", CHAT | ONCE | {"options": {"num_predict": 1, **options}})
        [occupant] = server.executor.slots.values()
        seen.append(occupant.params.repeat_last_n)
    assert seen == [64, 5, -1]


HINTS = {
    "options": FIXED
    | {"num_ctx": 4096, "num_gpu": 1, "num_thread": 8, "use_mmap": True, "num_batch": 64}
    | {"num_keep": 5, "main_gpu": 1, "numa": True, "penalize_newline": False, "tfs_z": 0.5},
    "keep_alive": "5m",
    "truncate": True,
    "shift": True,
    "think": True,
}
NEUTRAL = {
    "options": FIXED
    | {"num_ctx": 512, "num_gpu": -1, "num_thread": 0, "numa": False, "tfs_z": 1}
    | {"typical_p": 1.0, "mirostat": 0, "min_p": 0.0, "presence_penalty": 0.0},
    "truncate": False,
    "think": False,
    "format": "",
    "images": [],
}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_hints_are_accepted_and_named(ollama: Client, path: str) -> None:
    body = (CHAT if path == "/api/chat" else PROMPT) | ONCE
    expected = ollama.post(path, body).json()
    hinted = ollama.post(path, body | HINTS)
    assert hinted.json()["eval_count"] == expected["eval_count"]
    options = {f"options.{name}" for name in HINTS["options"].keys() - FIXED.keys()}  # type: ignore[attr-defined]
    named = {"keep_alive", "truncate", "shift", "think"} | options
    assert set(hinted.headers[HEADER].split(", ")) == named
    neutral = {k: v for k, v in NEUTRAL.items() if path != "/api/chat" or k != "images"}
    plain = ollama.post(path, body | neutral)
    assert plain.status_code == 200
    assert HEADER not in plain.headers


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/api/chat", {"messages": [ASKED[0] | {"images": ["aGk="]}]}, "messages[0].images"),
        ("/api/chat", {"messages": [ASKED[0] | {"tool_calls": [
            {"function": {"name": "f", "arguments": {}}}]}]}, "messages[0].tool_calls"),
        ("/api/chat", {"format": "yaml"}, "format"),
        ("/api/chat", {"format": {"type": 3}}, "format"),
        ("/api/chat", {"think": "very"}, "think"),
        ("/api/chat", {"keep_alive": "5 minutes"}, "keep_alive"),
        ("/api/chat", {"options": {"top_q": 1}}, "options.top_q"),
        ("/api/chat", {"options": {"mirostat": 1}}, "mirostat"),
        ("/api/chat", {"options": {"temperature": "hot"}}, "options.temperature"),
        ("/api/chat", {"top_logprobs": 2}, "top_logprobs"),
        ("/api/chat", {"options": {"stop": [""]}}, "stop"),
        ("/api/chat", {"max_tokens": 3}, "max_tokens"),
        ("/api/generate", {"images": ["aGk="]}, "images"),
        ("/api/generate", {"template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"raw": True, "system": "short"}, "raw"),
        ("/api/generate", {"suffix": "x", "system": "short"}, "system"),
        ("/api/generate", {"context": [999]}, "context"),
        ("/api/generate", {"prompt": "a" * 600}, "prompt is too large: it has 607 tokens"),
        ("/api/generate", {"width": 512}, "width"),
    ],
)  # fmt: skip
def test_refused_by_name(ollama: Client, path: str, fields: dict[str, Any], name: str) -> None:
    answer = ollama.post(path, (CHAT if path == "/api/chat" else PROMPT) | fields)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    assert name in answer.json()["error"]


def test_an_error_in_a_stream_is_a_line(serve: Callable[..., Running]) -> None:
    server = serve()

    def fail(step: int) -> None:
        if step > 3:
            raise RuntimeError("the step burns")

    server.executor.before_step = fail
    *_, last = lines(server.post("/api/chat", CHAT).text)
    assert "burns" in last["error"]


def test_a_model_without_a_template(ollama: Client) -> None:
    object.__setattr__(ollama.engine.model, "template", None)
    try:
        answer = ollama.post("/api/generate", PROMPT | ONCE).json()
        assert answer["response"] == said(FakeTokenizer().encode("hello"))
        assert ollama.post("/api/generate", PROMPT | {"system": "s"}).status_code == 400
        assert ollama.post("/api/chat", CHAT).status_code == 400
    finally:
        object.__setattr__(ollama.engine.model, "template", FakeTemplate())
