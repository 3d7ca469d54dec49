"""Text to token ids and back: `/tokenize`, `/detokenize` and `/tokenizer_info`.

llama.cpp has routes of the same names with other fields. The field that holds the text tells which
of the two programs a body is meant for: vLLM has `prompt` or `messages`, llama.cpp has `content`.
The answer and the defaults are those of that program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import InvalidRequestError
from heddle.server.generate.chat import functions_of, template_arguments
from heddle.server.generate.chat_fields import Messages, Tools  # noqa: TC001  pydantic reads them
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.tools import use_of
from heddle.server.http.encoding import encode, json_response
from heddle.server.http.fields import TokenIds, only
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.engine.loading import LoadedModel
    from heddle.server.generate.service import Service

_OF_CHATS = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
_MEANINGLESS = {
    "prompt": _OF_CHATS,
    "messages": ("parse_special",),
    "content": (*_OF_CHATS, "return_token_strs"),
}
"""Fields that hold the text, each with the fields that have no meaning beside it."""


_AT_ONCE = 1 << 16
"""Ids to encode at once. Each takes 100 bytes and more as an object on its way to JSON."""


class TokenizeRequest(Schema):
    """Body of `POST /tokenize`: one of `prompt`, `messages` and `content`."""

    model: str | None = None

    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None

    chat_template: Annotated[Any, only()] = None


class DetokenizeRequest(Schema):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds


class Text(BaseModel):
    """Answer of `POST /detokenize`."""

    prompt: str = Field(description="the text, special tokens included, under vLLM's name")
    content: str = Field(description="the same under llama.cpp's name")


class Tokens(BaseModel):
    """Answer of `POST /tokenize` to `content`."""

    tokens: list[int] | list[dict[str, Any]] = Field(
        description="ids; with_pieces: objects of id and piece, a string or a list of bytes"
    )


class CountedTokens(Tokens):
    """Answer of `POST /tokenize` to `prompt` or `messages`."""

    count: int = Field(description="how many tokens there are")
    max_model_len: int = Field(description="most tokens of a request, prompt and output")
    token_strs: list[str] | None = Field(description="the tokens as text, where asked for")


class TokenizerInfo(BaseModel):
    """Answer of `GET /tokenizer_info`: the fields of vLLM's that clients read."""

    bos_token: str | None = Field(description="what texts begin with")
    eos_token: str | None = Field(description="what texts end with")
    pad_token: None = None
    chat_template: str | None = Field(description="the model's, in Jinja")


def routes(service: Service) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()
    bodies = service.bodies

    def tokenized(asked: TokenizeRequest) -> list[bytes]:
        return _tokenized(asked, service)

    def detokenized(asked: DetokenizeRequest) -> Text:
        service.model_name(asked.model)
        text = service.engine.model.tokenizer.decode(asked.tokens, skip_special=False)
        return Text(prompt=text, content=text)

    @router.post(
        "/tokenize", response_model=CountedTokens | Tokens, openapi_extra=takes(TokenizeRequest)
    )
    async def tokenize(request: Request) -> Response:
        """Token ids of a text or a conversation."""
        parts = await bodies.take(request, TokenizeRequest, tokenized)
        return JsonPartsResponse("tokenize", parts, service.backlog)

    @router.post("/detokenize", response_model=Text, openapi_extra=takes(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """Text of token ids."""
        text = await bodies.take(request, DetokenizeRequest, detokenized)
        return json_response(text.model_dump())

    @router.get("/tokenizer_info", response_model=TokenizerInfo)
    def tokenizer_info() -> Response:
        """What a client needs to render prompts itself, as lm-eval does."""
        return json_response(_info(service.engine.model).model_dump())

    return router


def _info(model: LoadedModel) -> TokenizerInfo:
    name, tokenizer = model.tokenizer.token_text, model.tokenizer
    return TokenizerInfo(
        bos_token=None if tokenizer.bos_id is None else name(tokenizer.bos_id),
        eos_token=None if tokenizer.eos_id is None else name(tokenizer.eos_id),
        chat_template=None if model.template is None else model.template.source,
    )


def _tokenized(asked: TokenizeRequest, service: Service) -> list[bytes]:
    """The answer's JSON in pieces. Encoded in the thread that tokenizes, since it may be large."""
    service.model_name(asked.model)
    ids = _token_ids(asked, service)
    tokenizer = service.engine.model.tokenizer
    if asked.with_pieces:
        tokens = _array(ids, lambda id: {"id": id, "piece": _piece(tokenizer.token_bytes(id))})
    else:
        tokens = _array(ids, int)
    if asked.content is not None:
        return [b'{"tokens":', *tokens, b"}"]
    head = encode({"count": len(ids), "max_model_len": service.engine.context})
    strings = _array(ids, tokenizer.token_text) if asked.return_token_strs else [b"null"]
    return [head[:-1], b',"token_strs":', *strings, b',"tokens":', *tokens, b"}"]


def _array(ids: Sequence[int], of: Callable[[int], object]) -> list[bytes]:
    """JSON of an array with a value for each id, in pieces: there may be millions of ids."""
    parts = [b"["]
    for start in range(0, len(ids), _AT_ONCE):
        values = [of(id) for id in ids[start : start + _AT_ONCE]]
        parts += [encode(values)[1:-1], b","]
    return [*(parts[:-1] if ids else parts), b"]"]


def _token_ids(asked: TokenizeRequest, service: Service) -> Sequence[int]:
    """
    Raises:
        InvalidRequestError: the body has no text or several, or fields contradict each other.
    """
    model = service.engine.model
    given = [name for name in _MEANINGLESS if getattr(asked, name) is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InvalidRequestError(f"send one of prompt, messages and content; got {got}")
    for name in _MEANINGLESS[given[0]]:
        if getattr(asked, name) is not None:
            raise InvalidRequestError(
                f"{name} means nothing beside {given[0]}; leave it out", param=name
            )
    special = asked.add_special_tokens if asked.add_special is None else asked.add_special
    if asked.messages is not None:
        if special:
            raise InvalidRequestError(
                f"{'add_special_tokens' if asked.add_special is None else 'add_special'} cannot be"
                " true with messages: the chat template adds what the model needs; leave it out",
                param="add_special_tokens",
            )
        return model.chat_prompt(
            **template_arguments(asked, use_of(functions_of(asked.tools), None).tools)
        )
    text = asked.prompt if asked.content is None else asked.content
    assert text is not None
    if special is None:
        special = asked.content is None
    return model.tokenizer.encode(
        text, add_special=special, parse_special=asked.parse_special is not False
    )


def _piece(raw: bytes) -> str | list[int]:
    """A token's text; its bytes if they are part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
