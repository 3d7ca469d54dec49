"""Answers of `/v1/responses`, checked field by field against the types of OpenAI's client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

if TYPE_CHECKING:
    import httpx

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def response_of(answer: httpx.Response) -> Response:
    """A whole response."""
    assert answer.status_code == 200, answer.text
    return Response.model_validate(answer.json(), strict=True)


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream. Checks that later events repeat what the pieces were."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    pairs = [event.split("\n") for event in answer.text.split("\n\n")[:-1]]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name.removeprefix("event: ") for name, _ in pairs] == [one["type"] for one in events]
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    for one in events:
        _EVENT.validate_python(one, strict=True)
    added = [one["item"] for one in events if one["type"] == "response.output_item.added"]
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    for place, (first, last) in enumerate(zip(added, done, strict=True)):
        own = [one for one in events if one.get("item_id") == first["id"]]
        assert (last["id"], {one["output_index"] for one in own}) == (first["id"], {place})
        text = "".join(one["delta"] for one in own if one["type"].endswith(".delta"))
        assert text == (last["arguments"] if "arguments" in last else last["content"][0]["text"])
        [told] = [
            one for one in own if one["type"].endswith((".text.done", "_text.done", "ts.done"))
        ]
        assert text == told["arguments" if "arguments" in told else "text"]
        if "content" in last:
            assert first["content"] == []
            assert [one["part"] for one in own if one["type"].endswith("part.done")] == last[
                "content"
            ]
    return events
