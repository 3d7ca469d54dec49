"""`/v1/chat/completions` as the official client sees it, over a socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import END, solo_output
from fake_model import FakeTemplate, FakeTokenizer, text_of
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_server import Running

MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
PROMPT = FakeTokenizer().encode(FakeTemplate().render(MESSAGES))


def expected(seed: int, max_tokens: int) -> list[int]:
    """The tokens a request must give."""
    params = SamplingParams(seed=seed, max_tokens=max_tokens, ignore_eos=True)
    return solo_output(PROMPT, params, 512)


def ask(server: Running, seed: int, max_tokens: int, **fields: Any) -> Any:
    return server.openai.chat.completions.create(
        model="fake",
        messages=MESSAGES,
        seed=seed,
        max_tokens=max_tokens,
        extra_body={"ignore_eos": True},
        **fields,
    )


def test_an_answer_in_one_piece(shared: Running) -> None:
    answer = ask(shared, seed=1, max_tokens=9, user="me")
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "fake")
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason) == (0, "length")
    assert choice.message.role == "assistant"
    assert choice.message.content == text_of(expected(1, 9))
    assert choice.logprobs is None
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), 9)
    assert usage.total_tokens == len(PROMPT) + 9


def test_equal_settings_have_equal_fingerprints(
    serve: Callable[..., Running], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    answers = {"chat/completions": {"messages": MESSAGES}, "completions": {"prompt": "hello"}}
    found = []
    for settings in ({}, {"slots": 2}, {"sampling": {"temperature": 0.5}}, {"open_schemas": True}):
        server = serve(path=path, **settings)
        prints = set()
        for route, body in answers.items():
            prints.add(server.post(f"/v1/{route}", body).json()["system_fingerprint"])
            events = server.post(f"/v1/{route}", body | {"stream": True}).text.split("\n\n")[:-2]
            chunks = [json.loads(event.removeprefix("data: ")) for event in events]
            prints |= {chunk["system_fingerprint"] for chunk in chunks}
        [fingerprint] = prints
        found.append(fingerprint)
    assert all(one.startswith("bits-") for one in found)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_the_tokens_of_a_prompt_are_counted(shared: Running) -> None:
    body = {"messages": MESSAGES}
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        counted = shared.post(path, body).json()
        assert counted == {"object": "response.input_tokens", "input_tokens": len(PROMPT)}
    long = {"messages": [{"role": "user", "content": "a" * 5000}]}
    counted = shared.post("/v1/chat/completions/input_tokens", long).json()
    assert counted["input_tokens"] > 5000 > shared.engine.context, "more than the context holds"
    refused = shared.post("/v1/chat/completions/input_tokens", body | {"foo": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "foo")


@pytest.mark.parametrize(
    ("settings", "field", "shown"),
    [
        ({}, {}, False),
        ({}, {"verbose": True}, True),
        ({"log_level": "debug"}, {}, True),
        ({"log_level": "debug"}, {"verbose": False}, False),
    ],
)
def test_a_verbose_answer_has_the_prompt(
    serve: Callable[..., Running], settings: Any, field: Any, shown: bool
) -> None:
    server = serve(**settings)
    answer = server.post("/v1/chat/completions", {"messages": MESSAGES} | field).json()
    expected = {"__verbose": {"prompt": FakeTemplate().render(MESSAGES)}} if shown else {}
    assert {name: answer[name] for name in answer.keys() & {"__verbose"}} == expected


def test_the_last_event_of_a_verbose_stream_has_the_prompt(shared: Running) -> None:
    body = {"messages": MESSAGES, "stream": True, "verbose": True}
    body |= {"stream_options": {"include_usage": True}}
    *earlier, last = shared.post("/v1/chat/completions", body).text.split("\n\n")[:-2]
    told = json.loads(last.removeprefix("data: "))["__verbose"]
    assert told == {"prompt": FakeTemplate().render(MESSAGES)}
    assert not any("__verbose" in event for event in earlier)


def test_without_the_model_s_file_there_is_no_fingerprint(shared: Running) -> None:
    assert ask(shared, seed=1, max_tokens=1).system_fingerprint is None


def test_an_answer_as_a_stream(shared: Running) -> None:
    chunks = list(ask(shared, seed=1, max_tokens=9, stream=True))
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
    choices = [chunk.choices[0] for chunk in chunks]
    assert (choices[0].delta.role, choices[0].delta.content) == ("assistant", None)
    assert all(choice.delta.role is None for choice in choices[1:])
    assert all(choice.delta.content for choice in choices[1:-1])
    assert "".join(choice.delta.content or "" for choice in choices) == text_of(expected(1, 9))
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert choices[-1].delta.content is None


def test_usage_comes_last_and_only_when_asked_for(shared: Running) -> None:
    chunks = list(
        ask(shared, seed=1, max_tokens=9, stream=True, stream_options={"include_usage": True})
    )
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == len(PROMPT)
    assert chunks[-1].usage.completion_tokens == 9


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_chunks_say_that_usage_is_null_where_it_comes_last(shared: Running, path: str) -> None:
    """As OpenAI's API has it. Its client reads a missing field as null too."""
    asked = {"messages": MESSAGES} if "chat" in path else {"prompt": "hello"}
    for options, expected in (({"include_usage": True}, {None}), ({}, set())):
        body = asked | {"max_tokens": 3, "stream": True, "stream_options": options}
        events = shared.post(path, body).text.split("\n\n")
        chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
        told = [chunk["usage"] for chunk in chunks if "usage" in chunk and chunk["choices"]]
        assert set(told) == expected
        assert len(told) == sum(bool(chunk["choices"]) for chunk in chunks) * bool(expected)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_chunks_have_the_token_counts_so_far_as_in_vllm(shared: Running, path: str) -> None:
    asked = {"messages": MESSAGES} if "chat" in path else {"prompt": ["hello", "bye"]}
    prompts = [len(PROMPT)] if "chat" in path else [5, 3]
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = asked | {"max_tokens": 5, "n": 2, "seed": 1, "stream": True, "stream_options": options}
    answer = shared.post(path, body)
    chunks = [json.loads(event[6:]) for event in answer.text.split("\n\n") if event[6:7] == "{"]
    *chunks, total = chunks
    counts: dict[int, list[int]] = {}
    for chunk in chunks:
        index, usage = chunk["choices"][0]["index"], chunk["usage"]
        assert usage["prompt_tokens"] == prompts[index // 2]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        counts.setdefault(index, []).append(usage["completion_tokens"])
    assert all(counted == sorted(counted) for counted in counts.values())
    assert all(counted[0] <= 1 for counted in counts.values())
    assert [counted[-1] for counted in counts.values()] == [5] * 2 * len(prompts)
    assert total["usage"]["completion_tokens"] == 10 * len(prompts)
    assert "x-heddle-ignored" not in answer.headers


def test_without_a_last_chunk_of_usage_no_chunk_has_token_counts(shared: Running) -> None:
    options = {"continuous_usage_stats": True}
    body = {"messages": MESSAGES, "max_tokens": 2, "stream": True, "stream_options": options}
    answer = shared.post("/v1/chat/completions", body)
    assert "usage" not in answer.text
    assert answer.headers["x-heddle-ignored"] == "stream_options.continuous_usage_stats"


def test_the_stream_ends_with_done(shared: Running) -> None:
    response = shared.post(
        "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, "stream": True}
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: ")) for event in events)


def test_the_end_token_stops(shared: Running) -> None:
    params = SamplingParams(seed=5)
    tokens = solo_output(PROMPT, params, 512)
    assert tokens[-1] == END
    answer = shared.openai.chat.completions.create(model="fake", messages=MESSAGES, seed=5)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == text_of(tokens)
    assert answer.usage.completion_tokens == len(tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_itself(shared: Running, stream: bool) -> None:
    text = text_of(expected(2, 30))
    stop = text[10:12]
    answer = ask(shared, seed=2, max_tokens=30, stop=[stop, "not in it"], stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        got = "".join(choice.delta.content or "" for choice in choices)
        finish = choices[-1].finish_reason
    else:
        got, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert (got, finish) == (text[: text.index(stop)], "stop")


def test_choices_differ_by_their_seed(shared: Running) -> None:
    answer = ask(shared, seed=7, max_tokens=12, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [text_of(expected(7 + index, 12)) for index in range(3)]
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.completion_tokens == 36


def test_choices_of_a_stream_are_told_apart_by_index(shared: Running) -> None:
    stops = [text_of(expected(7, 12))[4:6]]
    texts, finishes = ["", "", ""], [[], [], []]
    for chunk in ask(shared, seed=7, max_tokens=12, n=3, stop=stops, stream=True):
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        finishes[choice.index].append(choice.finish_reason)
    whole = [text_of(expected(7 + index, 12)) for index in range(3)]
    assert texts == [text.split(stops[0])[0] for text in whole]
    ends = ["stop" if stops[0] in text else "length" for text in whole]
    assert ends[0] == "stop"
    assert [finish[-1] for finish in finishes] == ends
    assert all(set(finish[:-1]) == {None} for finish in finishes)


def test_logprobs(shared: Running) -> None:
    answer = ask(shared, seed=6, max_tokens=20, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    tokens = expected(6, 20)
    assert [item.logprob for item in content] == [-token / 8 for token in tokens]
    assert {0, 31} <= set(tokens), "the seed was chosen to show the end and half a character"
    for item, token in zip(content, tokens, strict=True):
        raw = FakeTokenizer().token_bytes(token)
        names = {31: "bytes:\\xc3", 0: "<end>"}
        assert item.token == names.get(token, raw.decode(errors="replace"))
        assert item.bytes == (list(raw) or None)
        assert [(top.token, top.logprob) for top in item.top_logprobs] == [
            ("<end>", 0),
            ("a", -1 / 8),
        ]


def test_logprobs_of_a_stream_are_all_there_and_in_order(shared: Running) -> None:
    chunks = list(ask(shared, seed=3, max_tokens=20, logprobs=True, stream=True))
    items = [
        item
        for chunk in chunks
        if chunk.choices[0].logprobs
        for item in chunk.choices[0].logprobs.content
    ]
    assert [item.logprob for item in items] == [-token / 8 for token in expected(3, 20)]
    assert all(item.top_logprobs == [] for item in items)


def test_the_end_token_has_its_logprob_in_the_last_chunk(shared: Running) -> None:
    stream = shared.openai.chat.completions.create(
        model="fake", messages=MESSAGES, seed=5, logprobs=True, stream=True
    )
    last = list(stream)[-1].choices[0]
    assert last.finish_reason == "stop"
    assert [item.token for item in last.logprobs.content] == ["<end>"]


PARTS = [{"type": "text", "text": "what is"}, {"type": "text", "text": "the sea"}]


@pytest.mark.extensions
def test_a_template_is_shown_text_parts_joined_by_newlines(shared: Running) -> None:
    body = {"messages": [{"role": "user", "content": PARTS}]}
    written = shared.post("/apply_template", body).json()
    assert written["prompt"] == "user- what is\nthe sea."


def test_text_parts_are_joined_by_newlines(shared: Running) -> None:
    def answer_to(content: object) -> str:
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 20, "seed": 1}
        answer = shared.post("/v1/chat/completions", body | {"ignore_eos": True}).json()
        return str(answer["choices"][0]["message"]["content"])

    assert answer_to(PARTS) == answer_to("what is\nthe sea") != answer_to("what is the sea")


def test_what_changes_nothing_is_accepted(shared: Running) -> None:
    answer = shared.post(
        "/v1/chat/completions",
        {
            "messages": [
                *MESSAGES,
                {"role": "assistant", "content": "hm", "tool_calls": None, "refusal": None},
                {"role": "tool", "content": "x", "tool_call_id": "1"},
                {"role": "user", "content": "go on", "name": "ann"},
            ],
            "max_tokens": 2,
            "max_completion_tokens": 2,
            "temperature": None,
            "stop": [],
            "logit_bias": {},
            "stream_options": None,
            "user": "ann",
            "metadata": {"a": "b"},
            "store": False,
            "verbosity": "medium",
            "prompt_cache_retention": "in_memory",
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "response_format": {"type": "text"},
            "service_tier": "auto",
        },
    )
    assert answer.status_code == 200, answer.text


def test_every_sampling_field_reaches_the_executor(shared: Running) -> None:
    fields = {
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 2**64 - 1,
        "ignore_eos": True,
        "logit_bias": {"3": -1.5},
        "stop": "xyz",
        "logprobs": True,
        "top_logprobs": 2,
        "n": 2,
    }
    seen = []
    bind = shared.executor._bind
    shared.executor._bind = lambda binding: (seen.append(binding.params), bind(binding))[1]  # type: ignore[method-assign]
    try:
        response = shared.post("/v1/chat/completions", {"messages": MESSAGES, **fields})
    finally:
        del shared.executor._bind  # type: ignore[method-assign]
    assert response.status_code == 200, response.text
    own = fields | {"logit_bias": {3: -1.5}, "stop": ("xyz",), "logprobs": 2}
    del own["top_logprobs"], own["n"]
    assert seen == [SamplingParams(**own), SamplingParams(**(own | {"seed": 0}))]
