"""Pictures in requests of every API, over a socket, with fake eyes."""

from __future__ import annotations

import re
from threading import current_thread
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from image_files import CAT, file_of, gradient, text_of, url_of
from PIL import Image

from configs import server_config
from fake_eyes import FakeEyes
from fake_server import run_server
from heddle.extensions.vision import reader
from heddle.hosting.entries import Entry
from heddle.hosting.registry import Registry
from heddle.hosting.status import ModelState
from live_server import live_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_server import Running

WIDE = file_of(gradient(35, 4))
"""A picture of 35 x 4 pixels, 8 tokens for fake eyes."""
M = FakeEyes.mark
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.fixture(scope="module")
def seeing() -> Iterator[Running]:
    with run_server(server_config(port=0, max_body=1 << 20), sees=True) as running:
        yield running


@pytest.fixture
def eyes(seeing: Running) -> FakeEyes:
    eyes = seeing.engine.model.eyes
    assert isinstance(eyes, FakeEyes)
    eyes.seen.clear()
    eyes.texts.clear()
    return eyes


def text(words: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": words}


def chat(*parts: Any, **more: Any) -> dict[str, Any]:
    """A body of OpenAI's chats."""
    return {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 2} | more


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url} | more}


def block(data: bytes, **source: Any) -> dict[str, Any]:
    """A block of Anthropic's API."""
    given = {"type": "base64", "media_type": "image/png", "data": text_of(data)} | source
    return {"type": "image", "source": given}


def turn(*blocks: Any) -> dict[str, Any]:
    """A body of Anthropic's API."""
    return {"messages": [{"role": "user", "content": list(blocks)}], "max_tokens": 2}


def sized(files: list[bytes]) -> list[tuple[int, int]]:
    return [(12, 8) if file == CAT else (35, 4) for file in files]


SENT: list[tuple[str, dict[str, Any], str, list[bytes]]] = [
    (CHAT, chat(image(url_of(CAT)), text("what")), f"user- {M}what.", [CAT]),
    (CHAT, chat(text("a"), text("b"), image(url_of(CAT)), text("c")), f"user- a\nb{M}c.", [CAT]),
    (CHAT, chat({"type": "image_url", "image_url": url_of(CAT)}), f"user- {M}.", [CAT]),
    (
        CHAT,
        chat(image(url_of(WIDE), detail="low"), image(url_of(CAT))),
        f"user- {M}{M}.",
        [WIDE, CAT],
    ),
    (
        RESPONSES,
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": url_of(CAT), "detail": "auto"},
                        text("what", "input_text"),
                    ],
                }
            ],
            "max_output_tokens": 2,
        },
        f"user- {M}what.",
        [CAT],
    ),
    (
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": "go"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_image", "image_url": url_of(CAT)}],
                },
            ],
            "max_output_tokens": 2,
        },
        M,
        [CAT],
    ),
    (MESSAGES, turn(block(CAT), text("what")), f"user- {M}what.", [CAT]),
    (
        MESSAGES,
        {
            "messages": [
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "c",
                            "is_error": True,
                            "content": [text("see"), block(CAT)],
                        }
                    ],
                },
            ],
            "max_tokens": 2,
        },
        f"Error: see{M}",
        [CAT],
    ),
    (
        "/api/chat",
        {
            "model": "fake",
            "messages": [{"role": "user", "content": "what", "images": [text_of(CAT)]}],
            "options": {"num_predict": 2},
        },
        f"user- {M}what.",
        [CAT],
    ),
    (
        "/api/generate",
        {
            "model": "fake",
            "system": "be",
            "prompt": "what",
            "images": [text_of(CAT), text_of(WIDE)],
            "options": {"num_predict": 2},
        },
        f"system- be.\nuser- {M}{M}what.",
        [CAT, WIDE],
    ),
    (
        "/completion",
        {
            "prompt": {
                "prompt_string": "a <__media__> b <__media__>",
                "multimodal_data": [text_of(WIDE), text_of(CAT)],
            },
            "n_predict": 2,
        },
        f"a {M} b {M}",
        [WIDE, CAT],
    ),
]


@pytest.mark.parametrize(("path", "body", "prompt", "files"), SENT)
def test_each_api_shows_pictures(
    seeing: Running,
    eyes: FakeEyes,
    path: str,
    body: dict[str, Any],
    prompt: str,
    files: list[bytes],
) -> None:
    response = seeing.post(path, body)
    assert response.status_code == 200, response.text
    assert prompt in eyes.texts[0]
    sizes = [(one.pixels.shape[1], one.pixels.shape[0]) for one in eyes.seen]
    assert sizes == sized(files)
    assert np.array_equal(eyes.seen[0].pixels, np.asarray(gradient(*sizes[0])))


def test_usage_counts_the_rows(seeing: Running, eyes: FakeEyes) -> None:
    answer = seeing.post(CHAT, chat(image(url_of(CAT)), text("what"))).json()
    assert answer["usage"]["prompt_tokens"] == len("user- what.") + eyes.count(12, 8)
    answer = seeing.post(MESSAGES, turn(block(CAT), text("what"))).json()
    usage = answer["usage"]
    counted = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted == len("user- what.") + 4


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{MESSAGES}/count_tokens", {"messages": turn(block(CAT), text("what"))["messages"]}),
        (f"{CHAT}/input_tokens", chat(image(url_of(CAT)), text("what"))),
        (f"{RESPONSES}/input_tokens", SENT[4][1]),
    ],
)
def test_counts_have_the_rows(seeing: Running, path: str, body: dict[str, Any]) -> None:
    assert seeing.post(path, body).json()["input_tokens"] == len("user- what.") + 4


def test_tokenize_has_the_rows(seeing: Running) -> None:
    body = {"messages": chat(image(url_of(CAT)), text("what"))["messages"]}
    assert seeing.post("/tokenize", body).json()["count"] == len("user- what.") + 4


def test_a_rendered_conversation_has_the_marks_of_completions(seeing: Running) -> None:
    body = {"messages": chat(image(url_of(CAT)), text("what"))["messages"]}
    assert seeing.post("/apply-template", body).json()["prompt"] == "user- <__media__>what."
    assert seeing.get("/props").json()["media_marker"] == "<__media__>"


def test_the_server_says_that_the_model_sees(seeing: Running, shared: Running) -> None:
    assert seeing.get("/props").json()["modalities"]["vision"] is True
    assert shared.get("/props").json()["modalities"]["vision"] is False
    for server, sees in ((seeing, True), (shared, False)):
        assert server.get("/v1/models").json()["data"][0]["modalities"] == {"vision": sees}
        assert server.get("/v1/models/fake").json()["modalities"] == {"vision": sees}
    assert "vision" in seeing.post("/api/show", {"model": "fake"}).json()["capabilities"]
    assert "vision" not in shared.post("/api/show", {"model": "fake"}).json()["capabilities"]


def test_a_stream_with_choices(seeing: Running, eyes: FakeEyes) -> None:
    body = chat(image(url_of(CAT)), n=2, stream=True, stream_options={"include_usage": True})
    with seeing.stream(CHAT, body) as events:
        lines = list(events.iter_lines())
    assert lines[-2] == "data: [DONE]"
    assert len(eyes.seen) == 1


def test_ollama_gives_no_context_after_pictures(seeing: Running) -> None:
    path, body, _, _ = SENT[9]
    answer = seeing.post(path, body | {"stream": False}).json()
    assert answer["done"]
    assert "context" not in answer


@pytest.mark.parametrize(("path", "body", "_prompt", "_files"), SENT)
def test_a_blind_model_refuses_before_it_reads(
    shared: Running,
    path: str,
    body: dict[str, Any],
    _prompt: str,
    _files: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "OpenedPicture", lambda *_: pytest.fail("read"))
    response = shared.post(path, body)
    assert response.status_code == 400
    assert "fake sees no pictures, and " in response.text
    assert re.search(r"(image_url|images\[0\]|source\.data|multimodal_data\[0\])", response.text)
    assert "These models of this server see pictures: none" in response.text


def test_a_blind_model_names_the_others(start: Any) -> None:
    registry, config = Registry.of(start()), server_config(port=0)
    with run_server(config, sees=True) as other, live_server(registry, config) as live:
        entry = Entry("sighted", "", other.engine.config, known=True)
        entry.state, entry.engine = ModelState.LOADED, other.engine
        registry._entries.insert(entry)
        answer = httpx.post(live.url + CHAT, json=chat(image(url_of(CAT))))
    message = answer.json()["error"]["message"]
    assert "These models of this server see pictures: 'sighted'" in message


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        (CHAT, chat(image("data:image/png;base64,!")), "messages[0].content[0].image_url.url", ""),
        (
            CHAT,
            chat(text("a"), {"type": "image_url", "image_url": url_of(CAT[:60])}),
            "messages[0].content[1].image_url",
            "damaged",
        ),
        (CHAT, chat(image(url_of(b"<svg/>"))), "messages[0].content[0].image_url.url", "SVG"),
        (
            CHAT,
            chat(image("https://example.org/cat.png")),
            "messages[0].content[0].image_url.url",
            "--allow-image-urls",
        ),
        (
            CHAT,
            chat(image("file:///etc/passwd")),
            "messages[0].content[0].image_url.url",
            "scheme 'file'",
        ),
        (CHAT, chat(image("cat.png")), "messages[0].content[0].image_url.url", "neither"),
        (CHAT, chat(image("data:image/png")), "messages[0].content[0].image_url.url", "comma"),
        (
            CHAT,
            chat(image(url_of(CAT)), text(f"the {M}")),
            "messages[0].content",
            "stands for a picture",
        ),
        (CHAT, chat(*[image(url_of(CAT))] * 65), "messages[0].content[64].image_url.url", "64"),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
            "image_url",
        ),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
            "missing",
        ),
        (
            "/api/generate",
            {"model": "fake", "prompt": "a", "images": [text_of(CAT)], "raw": True},
            "images",
            "chat template",
        ),
        (
            "/api/generate",
            {"model": "fake", "prompt": "a", "images": [text_of(CAT)], "context": [1]},
            "context",
            "token ids",
        ),
        (
            "/completion",
            {"prompt": {"prompt_string": "a", "multimodal_data": [text_of(CAT)]}},
            "prompt.prompt_string",
            "<__media__> once",
        ),
        (
            "/completion",
            {"prompt": {"prompt_string": f"<__media__>{M}", "multimodal_data": [text_of(CAT)]}},
            "prompt.prompt_string",
            "nowhere",
        ),
        (
            "/completion",
            {"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["?"]}},
            "prompt.multimodal_data[0]",
            "base64",
        ),
        (
            "/v1/embeddings",
            {"input": {"prompt_string": "<__media__>", "multimodal_data": [text_of(CAT)]}},
            "input.multimodal_data",
            "send text",
        ),
        (MESSAGES, turn(block(CAT, type="file", file_id="f")), "source", "file of the vendor"),
        (MESSAGES, turn(block(b"hello")), "messages[0].content[0].source.data", "no picture"),
        (
            MESSAGES,
            turn({"type": "image", "source": {"type": "url", "url": "http://a.example/b"}}),
            "messages[0].content[0].source.url",
            "--allow-image-urls",
        ),
    ],
)
def test_what_is_refused(
    seeing: Running, path: str, body: dict[str, Any], param: str, said: str
) -> None:
    response = seeing.post(path, body)
    assert response.status_code == 400
    assert param in response.text
    assert said in response.text


def test_pixels_of_a_request_are_bounded(seeing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_PIXELS_TOGETHER", 100)
    assert seeing.post(CHAT, chat(image(url_of(CAT)))).status_code == 200
    response = seeing.post(CHAT, chat(image(url_of(CAT)), image(url_of(CAT))))
    assert response.status_code == 400
    assert "192 pixels together" in response.json()["error"]["message"]


def test_pictures_are_read_in_threads(seeing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    class Noting(reader.OpenedPicture):
        def __init__(self, data: bytes, param: str) -> None:
            names.append(current_thread().name)
            super().__init__(data, param)

    monkeypatch.setattr(reader, "OpenedPicture", Noting)
    noise = file_of(Image.effect_noise((200, 200), 90))
    for file in (CAT, noise):  # bodies that the event loop and a thread parse
        assert seeing.post(CHAT, chat(image(url_of(file)))).status_code == 200
    assert len(names) == 2
    assert all(name.startswith("heddle-pictures") for name in names)
