"""Sixteen chats over HTTP, with tools, JSON schemas and bounded reasoning, and what they stream."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"enum": ["Ulm", "Bath"]}, "days": {"enum": [1]}},
}
PLACE |= {"required": ["place", "days"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PLACE}}
    for name in ("weather", "visit")
]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}
KINDS: tuple[dict[str, Any], ...] = (
    {"tools": TOOLS, "tool_choice": "required", "thinking_token_budget": 8},
    {"response_format": SCHEMA, "thinking_token_budget": 12, "temperature": 0.3},
    {"thinking_token_budget": 4, "logprobs": True, "top_logprobs": 2},
    {"tools": TOOLS, "n": 2, "thinking_token_budget": 20, "frequency_penalty": 0.5},
)


def bodies(count: int = 16, **fields: Any) -> list[dict[str, Any]]:
    """The bodies of so many chats. Each has a seed."""
    return [
        {
            "messages": [{"role": "user", "content": f"Where shall I go, {place}?"}],
            "seed": place,
            "max_completion_tokens": 100,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        | KINDS[place % len(KINDS)]
        | fields
        for place in range(count)
    ]


@dataclass
class Answer:
    """What a chat has streamed: the text of each field of each choice, and all that is counted."""

    texts: dict[tuple[int, str], str] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)
    ends: list[tuple[int, str]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)

    def add(self, chunk: dict[str, Any]) -> None:
        """Take a chunk of the stream."""
        if "error" in chunk:
            self.errors.append(chunk["error"])
        for choice in chunk.get("choices", ()):
            index, delta = choice["index"], dict(choice["delta"])
            for number, call in enumerate(delta.pop("tool_calls", None) or ()):
                for name, text in call["function"].items():
                    self._append(index, f"call {call.get('index', number)} {name}", text)
            for name, text in delta.items():
                self._append(index, name, text)
            self.logprobs += (choice.get("logprobs") or {}).get("content") or ()
            if choice["finish_reason"] is not None:
                self.ends.append((index, choice["finish_reason"]))
        if usage := chunk.get("usage"):
            self.tokens += [usage["prompt_tokens"], usage["completion_tokens"]]

    def _append(self, index: int, name: str, text: str | None) -> None:
        self.texts[index, name] = self.texts.get((index, name), "") + (text or "")


def stream(url: str, body: dict[str, Any], seen: Callable[[], object] = lambda: None) -> Answer:
    """Send a chat and read its stream to the end. Calls `seen` after each chunk."""
    answer, post = Answer(), f"{url}/v1/chat/completions"
    with httpx.stream("POST", post, json=body, timeout=PATIENCE) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                answer.add(json.loads(line.removeprefix("data: ")))
                seen()
        assert line == "data: [DONE]" or not line, f"the stream ended with {line!r}"
    answer.ends.sort()
    return answer


def stream_all(
    url: str, chats: list[dict[str, Any]], seen: Callable[[], object] = lambda: None
) -> list[Answer]:
    """Stream all chats at once."""
    with ThreadPoolExecutor(len(chats)) as pool:
        return list(pool.map(lambda body: stream(url, body, seen), chats))
