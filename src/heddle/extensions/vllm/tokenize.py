"""Converts text to token ids and back: `/tokenize`, `/detokenize` and `/tokenizer_info`.

vLLM and llama.cpp have routes with the same names and different fields. The field with the text
decides which shape a body has: vLLM's bodies have `prompt` or `messages`, llama.cpp's bodies have
`content`. The defaults and the shape of the answer follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import InvalidRequestError
from heddle.parameters import Api
from heddle.server.generate.chat import chat_of, functions_of
from heddle.server.generate.chat_fields import Messages, Tools  # noqa: TC001  pydantic reads them
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.request import tokens_in
from heddle.server.generate.tools import use_of
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.encoding import encode, json_response
from heddle.server.http.fields import TokenIds  # noqa: TC001  pydantic reads it
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.loading.loaded_model import LoadedModel
    from heddle.server.generate.service import Served, Service

_CHAT_FIELDS = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "tools",
)
_EXCLUDED = {
    "prompt": _CHAT_FIELDS,
    "messages": ("parse_special",),
    "content": (*_CHAT_FIELDS, "return_token_strs"),
}
"""The fields with the text, each with the fields that it excludes."""


_AT_ONCE = 1 << 16
"""Token ids to encode at once. An array's part is a string of these."""


@decided(Api.TOKENIZE)
class TokenizeRequest(Schema):
    """Body of `POST /tokenize`, with one of `prompt`, `messages` and `content`."""

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


@decided(Api.DETOKENIZE)
class DetokenizeRequest(Schema):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds


class Text(BaseModel):
    """Response of `POST /detokenize`."""

    prompt: str = Field(description="The text, with special tokens, under vLLM's name.")
    content: str = Field(description="The same text under llama.cpp's name.")


class Tokens(BaseModel):
    """Response of `POST /tokenize` to `content`."""

    tokens: list[int] | list[dict[str, Any]] = Field(
        description="Token ids. With with_pieces: objects with id and piece; a piece is a string or"
        " a list of bytes."
    )


class CountedTokens(Tokens):
    """Response of `POST /tokenize` to `prompt` or `messages`."""

    count: int = Field(description="Number of tokens.")
    max_model_len: int = Field(description="Most tokens of a request, prompt and output together.")
    token_strs: list[str] | None = Field(
        description="The tokens as text; null without return_token_strs."
    )


class TokenizerInfo(BaseModel):
    """Response of `GET /tokenizer_info`, with the fields of vLLM that clients read."""

    bos_token: str | None = Field(description="Token that begins a text.")
    eos_token: str | None = Field(description="Token that ends a text.")
    pad_token: None = None
    chat_template: str | None = Field(description="Chat template of the model, in Jinja.")


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post(
        "/tokenize", response_model=CountedTokens | Tokens, openapi_extra=takes(TokenizeRequest)
    )
    async def tokenize(request: Request) -> Response:
        """Convert a text or a conversation to token ids."""
        parts = await service.take(request, TokenizeRequest, _tokenized)
        return JsonPartsResponse(parts, service.backlog)

    @router.post("/detokenize", response_model=Text, openapi_extra=takes(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """Convert token ids to text."""
        text = await service.take(request, DetokenizeRequest, _detokenized)
        return json_response(text.model_dump())

    @router.get("/tokenizer_info", response_model=TokenizerInfo)
    async def tokenizer_info(request: Request, model: str | None = None) -> Response:
        """Report what clients such as lm-eval need to render prompts themselves."""
        engine = await service.engine(request, model)
        return json_response(_info(engine.model).model_dump())

    return router


def _info(model: LoadedModel) -> TokenizerInfo:
    name, tokenizer = model.tokenizer.token_text, model.tokenizer
    return TokenizerInfo(
        bos_token=None if tokenizer.bos_id is None else name(tokenizer.bos_id),
        eos_token=None if tokenizer.eos_id is None else name(tokenizer.eos_id),
        chat_template=None if model.template is None else model.template.source,
    )


def _tokenized(body: TokenizeRequest, served: Served) -> list[bytes]:
    """Tokenise a body and encode the response, which may be large, as JSON in parts."""
    ids = _token_ids(body, served)
    tokenizer = served.engine.model.tokenizer
    if body.with_pieces:
        tokens = _array(ids, lambda id: {"id": id, "piece": _piece(tokenizer.token_bytes(id))})
    else:
        tokens = _array(ids, int)
    if body.content is not None:
        return [b'{"tokens":', *tokens, b"}"]
    head = encode({"count": len(ids), "max_model_len": served.engine.context})
    strings = _array(ids, tokenizer.token_text) if body.return_token_strs else [b"null"]
    return [head[:-1], b',"token_strs":', *strings, b',"tokens":', *tokens, b"}"]


def _detokenized(body: DetokenizeRequest, served: Served) -> Text:
    text = served.engine.model.tokenizer.decode(body.tokens, skip_special=False)
    return Text(prompt=text, content=text)


def _array(ids: Sequence[int], of: Callable[[int], object]) -> list[bytes]:
    """Encode an array with a value for each id, in parts, because there may be millions of ids.

    Each value is encoded once. Two million objects with pieces would take 20 s.
    """
    known = {id: encode(of(id)) for id in set(ids)}
    parts = [b"["]
    for start in range(0, len(ids), _AT_ONCE):
        parts += [b",".join([known[id] for id in ids[start : start + _AT_ONCE]]), b","]
    return [*(parts[:-1] if ids else parts), b"]"]


def _token_ids(body: TokenizeRequest, served: Served) -> Sequence[int]:
    """The token ids of a body's text or conversation.

    Raises:
        InvalidRequestError: the body has no text or several texts, or fields exclude each other.
    """
    model = served.engine.model
    given = [name for name in _EXCLUDED if getattr(body, name) is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InvalidRequestError(f"send one of prompt, messages and content; got {got}")
    for name in _EXCLUDED[given[0]]:
        if getattr(body, name) is not None:
            raise InvalidRequestError(
                f"{name} has no effect with {given[0]}; leave it out", param=name
            )
    special = body.add_special_tokens if body.add_special is None else body.add_special
    if body.messages is not None:
        if special:
            raise InvalidRequestError(
                f"{'add_special_tokens' if body.add_special is None else 'add_special'} cannot be"
                " true with messages, because the chat template adds special tokens; leave it out",
                param="add_special_tokens",
            )
        chat = chat_of(body, tools=use_of(functions_of(body.tools), None))
        return tokens_in(chat.prompt(chat.text(served, {}), served))
    text = body.prompt if body.content is None else body.content
    assert text is not None
    if special is None:
        special = body.content is None
    return model.tokenizer.encode(
        text, add_special=special, parse_special=body.parse_special is not False
    )


def _piece(raw: bytes) -> str | list[int]:
    """The text of a token, or its bytes if they are a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
