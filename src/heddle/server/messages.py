"""Anthropic's API: `/v1/messages`, whole and as events, and `/v1/messages/count_tokens`.

Text only: tools, images and documents are refused by name. Cache control marks are accepted, since
every prompt is cached without them. A last message of the assistant is gone on with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, Tag
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.answers import Answer
from heddle.server.encoding import encode, event, json_response
from heddle.server.errors import anthropic_error_body
from heddle.server.fields import FIRST_FAULT, only, shaped
from heddle.server.intake import Job
from heddle.server.schemas import MAX_ITEMS, Schema, takes
from heddle.text.parts import Text
from heddle.types import MAX_STOP_STRINGS, MAX_STRING_LENGTH, FinishReason, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.server.answering import Answering
    from heddle.server.answers import Json
    from heddle.server.service import Service
    from heddle.text.parts import Part
    from heddle.types import Delta, Output, TokenLogprob


class TextBlock(Schema):
    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None
    citations: Annotated[Any, only([])] = None


Content = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[list[TextBlock], Field(max_length=MAX_ITEMS), FIRST_FAULT, Tag("<list of dict>")],
    shaped("a string or a list of blocks of type text"),
]


class Turn(Schema):
    role: Literal["user", "assistant"]
    content: Content


class CountRequest(Schema):
    """Body of `POST /v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_ITEMS), FIRST_FAULT]
    system: Content | None = None

    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only({"type": "auto"}, {"type": "none"})] = None
    thinking: Annotated[Any, only({"type": "disabled"})] = None
    mcp_servers: Annotated[Any, only([])] = None
    output_config: Annotated[Any, only({})] = None
    cache_control: dict[str, Any] | None = None


class UserLabel(Schema):
    user_id: str | None = None


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STRING_LENGTH)]


class MessagesRequest(CountRequest):
    """Body of `POST /v1/messages`. The last three fields are not Anthropic's."""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    stop_sequences: (
        Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS), FIRST_FAULT] | None
    ) = None
    stream: bool | None = None
    metadata: UserLabel | None = None
    service_tier: Annotated[Any, only("auto", "standard_only")] = None
    container: Annotated[Any, only()] = None

    seed: int | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None


_SAMPLING_FIELDS = (
    *("max_tokens", "temperature", "top_k", "top_p"),
    *("seed", "ignore_eos", "cache_salt"),
)


class TokenCount(BaseModel):
    """Answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int


def routes(service: Service, answering: Answering) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()

    def job(asked: MessagesRequest) -> Job:
        fields = {
            name: value for name in _SAMPLING_FIELDS if (value := getattr(asked, name)) is not None
        }
        params = SamplingParams(**fields, stop=tuple(asked.stop_sequences or ()))
        prompt = _prompt(asked, service)
        service.engine.check_length(len(prompt))
        return Job([prompt], params, 1, bool(asked.stream), usage=True)

    @router.post("/v1/messages", openapi_extra=takes(MessagesRequest))
    async def messages(request: Request) -> Response:
        """The next message of a conversation, as Anthropic's API has it."""
        wanted = await service.bodies.take(request, MessagesRequest, job)
        writer = MessageAnswer(service.engine.model.info.id, len(wanted.prompts[0]))
        return await answering.answer(request, writer, wanted)

    @router.post(
        "/v1/messages/count_tokens", response_model=TokenCount, openapi_extra=takes(CountRequest)
    )
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation is."""
        count = await service.bodies.take(
            request, CountRequest, lambda asked: len(_prompt(asked, service))
        )
        return json_response({"input_tokens": count})

    return router


def _prompt(asked: CountRequest, service: Service) -> list[int]:
    """Token ids of the conversation.

    Raises:
        InvalidRequestError: the model has no chat template, or it refuses the messages.
    """
    service.check_model(asked.model)
    turns = [{"role": turn.role, "content": _text(turn.content)} for turn in asked.messages]
    if asked.system:
        turns.insert(0, {"role": "system", "content": _text(asked.system)})
    goes_on = turns[-1]["role"] == "assistant"
    return service.engine.model.chat_prompt(turns, continue_final_message=goes_on)


def _text(content: str | list[TextBlock]) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.text for block in content)


class MessageAnswer(Answer):
    """A `message`, in one piece or as events that have their names in front."""

    prefix = "msg_"

    def __init__(self, model: str, prompt_tokens: int) -> None:
        """A stream begins before it is known how much of the prompt is cached; so its first event
        counts all `prompt_tokens` as input, and its last tells the truth."""
        super().__init__(model)
        self._prompt_tokens = prompt_tokens
        self._last: Json = {}

    def whole(self, outputs: Sequence[Output], totals: Json) -> list[bytes]:
        [output] = outputs
        content = [{"type": "text", "text": output.text}] if output.text else []
        stop = _stop(output.finish, output.stop)
        return [encode(self._message(content, _usage(totals["usage"])) | stop)]

    def opening(self, index: int) -> bytes:
        usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": 0}
        message = self._message([], _usage(usage | {"prompt_tokens_details": {"cached_tokens": 0}}))
        block = {"type": "text", "text": ""}
        return (
            _event("message_start", message=message)
            + _event("content_block_start", index=0, content_block=block)
            + _event("ping")
        )

    def piece(self, index: int, part: Part, tokens: Sequence[TokenLogprob]) -> bytes:
        assert isinstance(part, Text), "nothing else is looked for"
        delta = {"type": "text_delta", "text": part.text}
        return _event("content_block_delta", index=0, delta=delta)

    def closing(self, index: int, tokens: Sequence[TokenLogprob], last: Delta) -> bytes:
        assert last.finish is not None
        self._last = _stop(last.finish, last.stop)
        return _event("content_block_stop", index=0)

    def ending(self, totals: Json) -> bytes:
        usage = _usage(totals["usage"])
        return _event("message_delta", delta=self._last, usage=usage) + _event("message_stop")

    def failure(self, error: HeddleError) -> bytes:
        return event(anthropic_error_body(error), "error")

    def _message(self, content: list[Json], usage: Json) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _stop(finish: FinishReason, stop: str | None) -> Json:
    """Why the message ended, in Anthropic's words."""
    reason = "max_tokens" if finish is FinishReason.LENGTH else "end_turn"
    return {"stop_reason": reason if stop is None else "stop_sequence", "stop_sequence": stop}


def _usage(usage: Json) -> Json:
    """Token counts under Anthropic's names, of which `input_tokens` leaves out what was cached."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
