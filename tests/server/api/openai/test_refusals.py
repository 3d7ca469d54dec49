"""Refusals and their form: OpenAI's error shape, the field by name, nothing ignored."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from heddle.hosting.registry import Registry
from heddle.server.generate import dispatch
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
COMPLETION = {"prompt": "hello", "max_tokens": 2}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error, which must have OpenAI's four fields, and at most two of llama.cpp's."""
    body = response.json()
    assert set(body) == {"error"}
    sizes = {"n_prompt_tokens", "n_ctx"}  # of a prompt that is too long
    assert set(body["error"]) - sizes == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    return body["error"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("foo", 1),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("web_search_options", {}),
        ("functions", 0),
        ("modalities", ["text", "audio"]),
        ("best_of", 2),
    ],
)
def test_unknown_and_unsupported_fields_of_a_chat(shared: Running, field: str, value: Any) -> None:
    response = shared.post("/v1/chat/completions", CHAT | {field: value})
    error = error_of(response)
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("unsupported_parameter", field)
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]


@pytest.mark.parametrize(("field", "value"), [("suffix", "x"), ("messages", []), ("foo", None)])
def test_unknown_and_unsupported_fields_of_a_completion(
    shared: Running, field: str, value: Any
) -> None:
    error = error_of(shared.post("/v1/completions", COMPLETION | {field: value}))
    assert (error["code"], error["param"]) == ("unsupported_parameter", field)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"temperature": "hot"}, "temperature", "'hot'"),
        ({"temperature": -1}, "temperature", "-1"),
        ({"temperature": True}, "temperature", "True"),
        ({"top_p": 0}, "top_p", "(0, 1]"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty", "[0.01, 100]"),
        ({"repetition_penalty": 1e39}, "repetition_penalty", "[0.01, 100]"),
        ({"repeat_penalty": 2.0, "repetition_penalty": 1.0}, "repeat_penalty", "differ"),
        ({"repeat_last_n": -2}, "repeat_last_n", "-1 is the whole sequence"),
        ({"top_k": -2}, "top_k", "at least 0"),
        ({"typical_p": 0}, "typical_p", "(0, 1]"),
        ({"top_n_sigma": -0.5}, "top_n_sigma", "-0.5"),
        ({"xtc_probability": 1.5}, "xtc_probability", "[0, 1]"),
        ({"xtc_threshold": 0}, "xtc_threshold", "(0, 1]"),
        ({"dry_multiplier": -1}, "dry_multiplier", "0 turns DRY off"),
        ({"dry_base": 0.5}, "dry_base", "[1, 1000]"),
        ({"dry_allowed_length": 0}, "dry_allowed_length", "at least 1"),
        ({"dry_penalty_last_n": 1.5}, "dry_penalty_last_n", "1.5"),
        ({"dry_sequence_breakers": "ab"}, "dry_sequence_breakers", "array"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers", "1 to 40"),
        ({"dry_sequence_breakers": ["a" * 41]}, "dry_sequence_breakers", "40 characters"),
        ({"dry_sequence_breakers": ["a"] * 33}, "dry_sequence_breakers", "at most 32"),
        ({"dynatemp_range": -1}, "dynatemp_range", "[0, 100]"),
        ({"dynatemp_exponent": 101}, "dynatemp_exponent", "[0, 100]"),
        ({"mirostat": 1}, "mirostat", "0 (off) or 2"),
        ({"mirostat_tau": -1}, "mirostat_tau", "-1"),
        ({"mirostat_eta": 2}, "mirostat_eta", "[0, 1]"),
        ({"samplers": ["top_k", "tok_p"]}, "samplers", "'tok_p'"),
        ({"samplers": ["top_k", "top_k"]}, "samplers", "once"),
        ({"samplers": [1]}, "samplers", "string or a list of strings"),
        ({"min_tokens": -1}, "min_tokens", "at least 0"),
        ({"min_tokens": 4, "max_tokens": 3}, "min_tokens", "max_tokens (3)"),
        ({"bad_words": [" "]}, "bad_words", "not whitespace"),
        ({"bad_words": ["a" * 257]}, "bad_words", "256 characters"),
        ({"bad_words": "word"}, "bad_words", "'word'"),
        ({"bad_words": ["a"] * 1001}, "bad_words", "at most 1000"),
        ({"max_tokens": -2}, "max_tokens", "at least 0"),
        ({"max_tokens": 1.5}, "max_tokens", "1.5"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "0"),
        ({"max_completion_tokens": 3}, "max_completion_tokens", "differ"),
        ({"n": 0}, "n", "0"),
        ({"n": 129}, "n", "128"),
        ({"n": 100}, "n", "100"),
        ({"seed": 2**64}, "seed", "64-bit"),
        ({"stream": "yes"}, "stream", "'yes'"),
        ({"stop": ["a", 1]}, "stop[1]", "1"),
        ({"stop": 1}, "stop", "string or a list of strings"),
        ({"stop": ""}, "stop", "1 to 1024"),
        ({"stop": list("abcdefghijklmnopq")}, "stop", "at most 16"),
        ({"stop_token_ids": [32]}, "stop_token_ids", "32"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "-1"),
        ({"stop_token_ids": 3}, "stop_token_ids", "3"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]", "True"),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids", "256"),
        ({"logit_bias": {"x": True}}, "logit_bias.x", "True"),
        ({"logit_bias": [["x"]]}, "logit_bias[0][1]", "missing"),
        ({"logit_bias": [1]}, "logit_bias", "list of pairs"),
        ({"logit_bias": [["b", -101], ["b", 100]]}, "logit_bias", "-101"),
        ({"samplers": "kpz"}, "samplers", "edskypmxit"),
        ({"samplers": "k" * 12}, "samplers", "at most 11 letters"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "'-1'"),
        ({"logit_bias": {"32": 1}}, "logit_bias", "32"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "101"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "21"),
        ({"logprobs": 1}, "logprobs", "1"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"messages": "hello"}, "messages", "'hello'"),
        ({"messages": []}, "messages", "[]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'robot'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "1"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0].type",
            "'input_audio'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].image_url",
            "missing",
        ),
    ],
)
def test_wrong_values_of_a_chat(
    shared: Running, fields: dict[str, Any], param: str, said: str
) -> None:
    response = shared.post("/v1/chat/completions", CHAT | fields)
    error = error_of(response)
    assert response.status_code == 400
    assert error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [32]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "hello" * 200}, "prompt"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"echo": 1}, "echo"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_wrong_values_of_a_completion(shared: Running, fields: dict[str, Any], param: str) -> None:
    response = shared.post("/v1/completions", COMPLETION | fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_choices_by_the_million_are_refused_before_any_is_made(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choices(*_: object) -> None:
        raise AssertionError("choices were made")

    monkeypatch.setattr(dispatch, "_choices", choices)
    for prompts, n, param, said in (
        (10_000, 128, "prompt", "1280000 choices (10,000 prompts times 128)"),
        (21, 1, "prompt", "the request has 21 prompts, but slots and queue hold 20"),
        (20, 2, "n", "40 choices (20 prompts times 2)"),
    ):
        response = shared.post("/v1/completions", {"prompt": ["a"] * prompts, "n": n})
        assert response.status_code == 400
        error = error_of(response)
        assert error["param"] == param
        assert said in error["message"]


def test_what_a_client_sends_stays_one_short_line_of_the_log(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:

    def forged() -> list[str]:  # others may end requests of tests before
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if "forged" in line]

    with caplog.at_level("INFO", "heddle"):
        shared.post("/v1/chat/completions", CHAT | {"a\nforged\x1b[2J" + "x" * 5000: 1})
        shared.until(lambda: bool(forged()))  # the line comes after the answer
    [line] = forged()
    assert r"a\nforged\x1b[2J" in line
    assert len(line) < 1000


def test_a_missing_field(shared: Running) -> None:
    error = error_of(shared.post("/v1/completions", {}))
    assert (error["param"], error["message"]) == ("prompt", "missing required parameter: prompt")


def test_another_model(shared: Running) -> None:
    response = shared.post("/v1/chat/completions", CHAT | {"model": "gpt-4"})
    assert response.status_code == 404
    error = error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'fake'" in error["message"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": [[]]}, "prompt[0] must have at least 1 item, got []"),
        (
            {"prompt": 7},
            "prompt must be a string, a list of strings, a list of token ids or a list",
        ),
        ({"stop_token_ids": [0] * 300}, "stop_token_ids must have at most 256 items, got [0, "),
        ({"temperature": []}, "temperature must be a valid number, got []"),
    ],
)
def test_what_is_said_is_about_json(shared: Running, fields: dict[str, Any], said: str) -> None:
    answer = shared.post("/v1/completions", COMPLETION | fields)
    assert answer.json()["error"]["message"].startswith(said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 10_000, "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"\\ud800"', "not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "finite"),
        (b'{"prompt": "a", "temperature": 1e999}', "finite"),
        (b'{"prompt": "a", "max_tokens": 1' + b"0" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_bodies_that_are_no_requests(shared: Running, body: bytes, said: str) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    response = shared.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 400
    assert said in error_of(response)["message"]


@pytest.mark.parametrize("declared", ["text/plain", "multipart/form-data", "application/xml"])
def test_a_body_that_is_declared_as_something_else(shared: Running, declared: str) -> None:
    """A form of a web page can send JSON as plain text, also with an old browser."""
    headers = {"content-type": declared}
    response = shared.post("/v1/completions", content=json.dumps(COMPLETION), headers=headers)
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


UNDECLARED: list[dict[str, str]] = [
    {},
    {"content-type": ""},
    {"content-type": "; charset=utf-8"},
    {"content-type": "application/octet-stream"},
    {"content-type": "application/x-www-form-urlencoded"},
]
"""Headers of clients that do not declare their JSON."""


@pytest.mark.parametrize("headers", UNDECLARED)
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/api/generate"])
def test_a_body_that_is_not_declared(shared: Running, path: str, headers: dict[str, str]) -> None:
    """curl and Ollama's clients in LiteLLM send such bodies."""
    body = json.dumps({"model": "fake", "prompt": "hello"})
    response = httpx.post(shared.url + path, content=body, headers=headers, timeout=PATIENCE)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("headers", UNDECLARED)
@pytest.mark.parametrize("page", [{"origin": "null"}, {"sec-fetch-site": "cross-site"}])
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/v1/messages", "/api/generate"])
def test_a_web_page_must_declare_its_body(
    shared: Running, path: str, page: dict[str, str], headers: dict[str, str]
) -> None:
    """A page can send any other body to any server without asking first."""
    body = json.dumps(COMPLETION)
    response = httpx.post(shared.url + path, content=body, headers=headers | page, timeout=PATIENCE)
    assert response.status_code == 415, response.text
    assert "application/json" in response.text


def test_a_form_is_no_json(shared: Running) -> None:
    response = shared.post("/v1/completions", data={'{"prompt': '"hello"}'})
    assert response.status_code == 400
    assert "not valid JSON" in error_of(response)["message"]


def head_of_body(length: int) -> bytes:
    """The head of a request whose body has `length` bytes, on a raw connection."""
    return (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    ).encode()


def until_closed(client: socket.socket) -> bytes:
    """All that the server sends before it closes the connection."""
    client.settimeout(PATIENCE)
    answer = b""
    while part := client.recv(4096):
        answer += part
    return answer


def test_a_body_that_is_too_large_is_refused_in_words(serve: Callable[..., Running]) -> None:
    server = serve(max_body=2000)
    response = server.post("/v1/completions", {"prompt": "a" * 3000})
    assert response.status_code == 413
    assert error_of(response)["code"] == "body_too_large"
    assert server.post("/v1/completions", COMPLETION).status_code == 200


def test_a_body_without_end_is_cut_off(serve: Callable[..., Running]) -> None:
    server = serve(max_body=2000)
    with socket.create_connection(server.address) as client:
        client.sendall(head_of_body(10**12) + b" " * 10_000)
        answer = until_closed(client)
    assert answer.startswith(b"HTTP/1.1 413")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_large"


def test_a_body_that_comes_too_slowly_is_refused_in_words(serve: Callable[..., Running]) -> None:
    server = serve(body_timeout=1)
    with socket.create_connection(server.address) as client:
        client.sendall(head_of_body(100) + b'{"prompt"')
        answer = until_closed(client)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("body_timeout", "invalid_request_error")
    assert "within 1 s;" in error["message"]
    assert server.post("/v1/completions", COMPLETION).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/audio/speech", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/fake", 405, "method_not_allowed"),
    ],
)
def test_routes_that_are_not_there(
    shared: Running, method: str, path: str, status: int, code: str
) -> None:
    response = httpx.request(method, shared.url + path, timeout=PATIENCE)
    assert response.status_code == status
    assert error_of(response)["code"] == code
    assert ("allow" in response.headers) == (status == 405)


def test_the_official_client_understands_refusals(shared: Running) -> None:
    client = shared.openai
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="fake", **CHAT, extra_body={"foo": 1})
    assert (refused.value.param, refused.value.code) == ("foo", "unsupported_parameter")
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", **CHAT)
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="fake", prompt="hello" * 200)
    assert refused.value.code == "context_length_exceeded"


def test_overload_is_said_before_the_stream_begins(serve: Callable[..., Running]) -> None:
    server = serve(slots=1, queue=1)
    server.executor.gate.clear()
    forever = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2}
    with server.openai.completions.with_streaming_response.create(
        model="fake", prompt="hello", n=2, stream=True
    ):
        response = server.post("/v1/completions", forever)
        assert response.status_code == 429
        error = error_of(response)
        assert (error["code"], error["type"]) == ("queue_full", "overloaded_error")
        assert int(response.headers["retry-after"]) >= 1
        with pytest.raises(openai.RateLimitError):
            server.openai.completions.create(model="fake", prompt="hello")
        server.executor.gate.set()
    server.until(server.idle)
    assert server.post("/v1/completions", COMPLETION).status_code == 200


def test_a_closed_engine_is_unavailable(serve: Callable[..., Running]) -> None:
    server = serve()
    server.engine.close()
    for stream in (False, True):
        response = server.post("/v1/completions", COMPLETION | {"stream": stream})
        assert response.status_code == 503
        assert error_of(response)["code"] == "engine_closed"
        assert "retry-after" in response.headers
    assert server.get("/health").status_code == 503


def failing_at(at: int) -> Callable[[int], None]:
    def before_step(step: int) -> None:
        if step == at:
            raise RuntimeError("boom")

    return before_step


def test_a_failed_step_fails_its_answer_and_refuses_later_requests(
    serve: Callable[..., Running],
) -> None:
    server = serve()
    server.executor.before_step = failing_at(0)
    response = server.post("/v1/completions", COMPLETION)
    assert response.status_code == 500
    assert error_of(response)["code"] == "engine_failed"
    for body in (COMPLETION, COMPLETION | {"stream": True}):
        refused = server.post("/v1/completions", body)
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "model_poisoned"
        assert "load it again" in error_of(refused)["message"]
    health = server.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "poisoned")
    assert health.json()["reason"] == "step 0 failed: boom"


def test_a_failed_step_ends_a_stream(serve: Callable[..., Running]) -> None:
    server = serve()
    server.executor.before_step = failing_at(4)
    body = {"prompt": "hello", "max_tokens": 9, "ignore_eos": True, "n": 2, "stream": True}
    events = server.post("/v1/completions", body).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    error = json.loads(events[-3].removeprefix("data: "))
    assert error["error"]["code"] == "engine_failed"
    assert sum('"error"' in event for event in events) == 1
    server.until(server.idle)


def test_the_official_client_raises_errors_of_a_stream(serve: Callable[..., Running]) -> None:
    server = serve()
    server.executor.before_step = failing_at(3)
    stream = server.openai.completions.create(
        model="fake", prompt="hello", stream=True, extra_body={"ignore_eos": True}
    )
    with pytest.raises(openai.APIError, match="boom"):
        for _ in stream:
            pass


def test_a_bug_is_an_answer_too(serve: Callable[..., Running], monkeypatch: Any) -> None:
    server = serve(cors=("*",))
    monkeypatch.setattr(Registry, "status", lambda _: 1 / 0)
    response = server.get("/v1/models", headers={"origin": "https://page.example"})
    assert response.status_code == 500
    error = error_of(response)
    assert (error["code"], error["type"]) == ("internal_error", "server_error")
    assert "division" not in error["message"]
    assert response.headers["x-request-id"]
    allowed = response.headers["access-control-allow-origin"]
    assert allowed == "https://page.example", "so that the page can read it"


@pytest.mark.parametrize("name", ["self", "template", "messages_"])
def test_a_template_variable_may_have_any_name(shared: Running, name: str) -> None:
    begun = {"role": "assistant", "content": "so"}
    body = CHAT | {"messages": [*CHAT["messages"], begun], "chat_template_kwargs": {name: 1}}
    for goes_on in (False, True):
        response = shared.post("/v1/chat/completions", body | {"continue_final_message": goes_on})
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("name", ["messages", "tools", "range"])
def test_a_template_variable_of_the_server_is_refused(shared: Running, name: str) -> None:
    response = shared.post("/v1/chat/completions", CHAT | {"chat_template_kwargs": {name: 1}})
    assert response.status_code == 400
    assert f"chat_template_kwargs cannot have {name!r}" in error_of(response)["message"]


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    "fields",
    [
        '"tools": [{"type": "function", "name": "f", "parameters": {"x": %s}}]',
        '"text": {"format": {"type": "json_schema", "schema": {"const": %s}}}',
    ],
)
def test_numbers_that_no_answer_can_say(shared: Running, fields: str, number: str) -> None:
    body = '{"input": "hello", "tool_choice": "none", ' + fields % number + "}"
    headers = {"content-type": "application/json"}
    response = httpx.post(
        shared.url + "/v1/responses", content=body, headers=headers, timeout=PATIENCE
    )
    assert response.status_code == 400
    assert "NaN" in error_of(response)["message"]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("prompt", [[1, 99], [[1], [99]]])
def test_a_token_id_that_is_none(shared: Running, prompt: Any, echo: bool) -> None:
    response = shared.post("/v1/completions", COMPLETION | {"prompt": prompt, "echo": echo})
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"
