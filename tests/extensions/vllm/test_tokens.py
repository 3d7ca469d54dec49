"""`/tokenize`, `/detokenize` and `/apply_template` in the shapes of vLLM and of llama.cpp."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import FakeExecutor
from fake_model import FakeTokenizer, fake_model
from heddle.extensions.vllm.tokenize import _array, _info

if TYPE_CHECKING:
    from fake_server import Running

HELLO = FakeTokenizer().encode("hello")
ASKED = [{"role": "user", "content": "hello"}]
BEGUN = [*ASKED, {"role": "assistant", "content": "so "}]


def test_tokenize_as_vllm(shared: Running) -> None:
    answer = shared.post("/tokenize", {"model": "fake", "prompt": "hello"})
    expected = {"count": 5, "max_model_len": 512, "tokens": HELLO, "token_strs": None}
    assert (answer.status_code, answer.json()) == (200, expected)
    named = shared.post("/tokenize", {"prompt": "hello", "return_token_strs": True}).json()
    assert named["token_strs"] == list("hello")


def test_tokenize_as_llama_cpp(shared: Running) -> None:
    assert shared.post("/tokenize", {"content": "hello"}).json() == {"tokens": HELLO}
    pieces = shared.post("/tokenize", {"content": "ab", "with_pieces": True}).json()
    assert pieces == {"tokens": [{"id": 1, "piece": "a"}, {"id": 2, "piece": "b"}]}
    assert shared.post("/tokenize", {"content": ""}).json() == {"tokens": []}


def test_part_of_a_character_is_bytes(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.engine.model.tokenizer, "encode", lambda *_, **__: [31])
    pieces = shared.post("/tokenize", {"content": "x", "with_pieces": True}).json()
    assert pieces == {"tokens": [{"id": 31, "piece": [0xC3]}]}


@pytest.mark.parametrize(
    ("body", "special", "parsed"),
    [
        ({"prompt": "x"}, True, True),
        ({"prompt": "x", "add_special_tokens": False}, False, True),
        ({"content": "x"}, False, True),
        ({"content": "x", "add_special": True, "parse_special": False}, True, False),
    ],
)
def test_special_tokens(
    shared: Running, monkeypatch: pytest.MonkeyPatch, body: Any, special: bool, parsed: bool
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        shared.engine.model.tokenizer, "encode", lambda _, **options: seen.append(options) or [1]
    )
    assert shared.post("/tokenize", body).status_code == 200
    assert seen == [{"add_special": special, "parse_special": parsed}]


def test_a_conversation_has_the_tokens_of_its_chat(shared: Running) -> None:
    tokens = shared.post("/tokenize", {"messages": ASKED}).json()
    chat = shared.post("/v1/chat/completions", {"messages": ASKED, "max_tokens": 1}).json()
    assert tokens["count"] == chat["usage"]["prompt_tokens"] == len("user- hello.")


def test_detokenize(shared: Running) -> None:
    answer = shared.post("/detokenize", {"tokens": [*HELLO, 0]})
    assert answer.json() == {"prompt": "hello<end>", "content": "hello<end>"}
    refused = shared.post("/detokenize", {"tokens": [32]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")


def test_what_lm_eval_asks_about_the_tokenizer(serve: Any) -> None:
    info = serve(bos_id=3).get("/tokenizer_info")
    assert info.status_code == 200
    assert info.json() == {
        "bos_token": "c",
        "eos_token": "<end>",
        "pad_token": None,
        "chat_template": "{{ messages }}",
    }
    bare = _info(fake_model(FakeExecutor(), template=False))
    assert (bare.bos_token, bare.chat_template) == (None, None)


@pytest.mark.parametrize("path", ["/apply_template", "/apply-template"])
def test_apply_template(shared: Running, path: str) -> None:
    def prompt(**body: Any) -> str:
        return shared.post(path, body).json()["prompt"]

    assert prompt(messages=ASKED) == "user- hello."
    assert prompt(messages=ASKED, add_generation_prompt=False) == "user- hello.\n"
    begun = prompt(messages=BEGUN, continue_final_message=True)
    assert begun == "user- hello.\nassistant- so "


def test_a_chat_goes_on_with_the_last_message(shared: Running) -> None:
    fields = {"max_tokens": 8, "seed": 1, "ignore_eos": True}
    body = {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False}
    chat = shared.post("/v1/chat/completions", body | fields).json()
    text = "user- hello.\nassistant- so "
    completion = shared.post("/v1/completions", {"prompt": text} | fields).json()
    assert chat["choices"][0]["message"]["content"] == completion["choices"][0]["text"]
    assert chat["usage"]["prompt_tokens"] == len(text)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "a", "content": "a"}, None),
        ("/tokenize", {"prompt": "a", "foo": 1}, "foo"),
        ("/tokenize", {"messages": ASKED, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": ASKED, "tools": [{}]}, "tools[0].type"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"content": "a", "return_token_strs": True}, "return_token_strs"),
        ("/tokenize", {"content": "a", "tools": []}, "tools"),
        ("/tokenize", {"messages": ASKED, "parse_special": True}, "parse_special"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {}, "tokens"),
        ("/apply_template", {"messages": []}, "messages"),
        (
            "/apply_template",
            {"messages": ASKED, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
    ],
)
def test_what_is_refused(shared: Running, path: str, body: Any, param: str | None) -> None:
    refused = shared.post(path, body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


def test_another_model_is_not_found(shared: Running) -> None:
    for path, body in (
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": []}),
        ("/apply_template", {"messages": ASKED}),
    ):
        assert shared.post(path, body | {"model": "other"}).status_code == 404


@pytest.mark.parametrize("count", [0, 1, 3, 1 << 16, (1 << 16) + 1])
def test_an_array_encodes_each_value_once(count: int) -> None:
    encoded: list[int] = []

    def of(id: int) -> dict[str, int]:
        encoded.append(id)
        return {"id": id}

    ids = [index % 3 for index in range(count)]
    assert json.loads(b"".join(_array(ids, of))) == [{"id": id} for id in ids]
    assert sorted(encoded) == sorted(set(ids))
