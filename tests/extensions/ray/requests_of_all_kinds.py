"""Requests to all APIs with all that a stream may depend on, and what must be equal in answers."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from live_server import KEYS
from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 60}},
            "required": ["city"],
        },
    },
}
PERSON: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 120, "maxLength": 160},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
}
JSON_FORM: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
HEADERS = {"authorization": f"Bearer {KEYS[0]}"}
LENGTH = 60
"""Tokens of an answer: several seconds, when three replicas with a core or less make 32."""
BEGUN = 8
"""Streams whose first events have arrived before something happens."""

CHATS: list[dict[str, Any]] = [
    {"temperature": 1.0, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "logprobs": True},
    {"temperature": 1.2, "top_k": 30, "repeat_penalty": 1.1, "logprobs": True},
    {"mirostat": 2, "logprobs": True},
    {"temperature": 0.8, "dry_multiplier": 0.8, "min_p": 0.05},
    {"n": 2, "temperature": 1.0, "logprobs": True},
    {"response_format": JSON_FORM, "temperature": 1.0},
    {"tools": [WEATHER], "tool_choice": "required"},
    {"stop": ["zebra", " of the"], "temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1, "logprobs": True},
]
"""Fields of chats. The last ones are further samplers."""


def requests() -> list[tuple[str, dict[str, Any]]]:
    """32 requests: paths and bodies."""
    made: list[tuple[str, dict[str, Any]]] = []
    for place, fields in enumerate(CHATS):
        common = {"messages": asked(place), "max_tokens": LENGTH, "seed": place} | fields
        made.append(("/v1/chat/completions", common | {"stream": True}))
        made.append(("/v1/chat/completions", common | {"stream": False}))
    for stream in (True, False):
        seeded = {"seed": 7, "stream": stream}
        made += [
            (
                "/v1/completions",
                {"prompt": "The sea", "max_tokens": LENGTH, "logprobs": 2} | seeded,
            ),
            ("/v1/responses", {"input": "Tell of the sea.", "max_output_tokens": LENGTH} | seeded),
            ("/v1/messages", {"messages": asked(40), "max_tokens": LENGTH} | seeded),
            (
                "/api/chat",
                {
                    "model": "smollm2-135m",
                    "messages": asked(41),
                    "stream": stream,
                    "options": {"seed": 7, "num_predict": LENGTH},
                },
            ),
            ("/completion", {"prompt": "The sea", "n_predict": LENGTH, "n_probs": 2} | seeded),
        ]
    return made


def asked(number: int) -> list[dict[str, str]]:
    """The messages of a chat."""
    return [{"role": "user", "content": f"Write a long story about number {number} and the sea."}]


@dataclass
class Answer:
    """What a client got.

    Attributes:
        status: of HTTP.
        said: the texts, figures and reasons in its events, without times and ids.
        stream: whether it is a stream.
        gap: the longest wait for bytes, in s.
        error: what the client raised; empty: nothing.
        last: the last line.
    """

    status: int = 0
    said: list[Any] = field(default_factory=list)
    stream: bool = False
    gap: float = 0.0
    error: str = ""
    last: str = ""


async def ask(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], begun: asyncio.Semaphore
) -> Answer:
    """Send a request and read its answer. Its first bytes release `begun`."""
    answer, last, text = Answer(stream=body["stream"]), time.monotonic(), b""
    try:
        async with client.stream("POST", path, json=body) as response:
            answer.status = response.status_code
            async for part in response.aiter_raw():
                now = time.monotonic()
                answer.gap, last = max(answer.gap, now - last), now
                if not text:
                    begun.release()
                text += part
    except httpx.HTTPError as error:
        answer.error = repr(error)
    answer.said = said(text)
    answer.last = text.decode().rstrip().rpartition("\n")[2]
    return answer


async def ask_all(url: str, trouble: Callable[[], None] = lambda: None) -> list[Answer]:
    """The answers to all requests at once. `trouble` is called when some of them have begun."""
    limits, begun = httpx.Limits(max_connections=None), asyncio.Semaphore(0)
    options: Any = {"timeout": PATIENCE, "limits": limits, "headers": HEADERS}
    async with httpx.AsyncClient(base_url=url, **options) as client:
        tasks = [asyncio.create_task(ask(client, *one, begun)) for one in requests()]
        for _ in range(BEGUN):
            await begun.acquire()
        trouble()
        return await asyncio.gather(*tasks)


def said(text: bytes) -> list[Any]:
    """What an answer says, by choice: events of choices come in any order."""
    lines = [line.removeprefix(b"data: ") for line in text.splitlines()]
    events = [clean(json.loads(line)) for line in lines if line.startswith(b"{")]
    return sorted(events, key=lambda one: [each["index"] for each in one.get("choices") or ()])


LEFT_OUT = (
    *("timings", "created", "created_at", "completed_at", "id", "item_id", "usage"),
    *("tokens_evaluated", "tokens_cached", "generation_settings", "id_slot", "call_id"),
)
"""Times, ids, and how an answer was computed."""


def clean(value: Any) -> Any:
    """A value without what differs from run to run."""
    if isinstance(value, list):
        return [clean(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: clean(one)
        for name, one in value.items()
        if name not in LEFT_OUT and not name.endswith(("_duration", "_at"))
    }
