"""Turns bodies into answers: translates a body, submits its choices, sends the answer."""

from __future__ import annotations

import time
from asyncio import to_thread
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pydantic import BaseModel
from starlette.requests import Request  # noqa: TC002  FastAPI reads annotations of routes
from starlette.responses import Response  # noqa: TC002

from heddle.embedding import EmbeddingParams
from heddle.engine.requests.processors import processors_of
from heddle.engine.requests.request import token_rules
from heddle.errors import GrammarError
from heddle.sampling_params import SamplingParams
from heddle.server.generate.event_stream import EventStream
from heddle.server.generate.json_answer import JsonAnswers
from heddle.server.http.connection import unless_gone
from heddle.server.http.keys import salt_of_key
from heddle.server.http.record import record_of
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastapi import APIRouter
    from starlette.types import Scope

    from heddle.engine import Engine
    from heddle.engine.streaming.streams import AsyncStreams
    from heddle.grammars import Grammar
    from heddle.pictures import Laid
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served, Service
    from heddle.server.generate.writer import AnswerWriter
    from heddle.token_rules import LogitsProcessor, SamplerRule, TokenGrammar, TokenRules


_BLAME_SECONDS = 1.0
"""Time limit for the compile candidates of one request. There may be a thousand, and other clients
wait meanwhile."""
_SEEDS = 2**64

Params = TypeVar("Params", SamplingParams, EmbeddingParams)
S = TypeVar("S", bound=BaseModel)
Translate: TypeAlias = "Callable[[S, Served, Scope], tuple[GenerationRequest, AnswerWriter]]"


def salted(params: Params, request: Request, service: Service) -> Params:
    """`params` with the salt of the request; see `own_salt`."""
    return replace(params, cache_salt=own_salt(params.cache_salt, request, service))


def own_salt(salt: str | None, request: Request, service: Service) -> str | None:
    """The salt of a request's prefixes, with its API key if each key has its own prefixes."""
    if not service.config.prefix_cache_per_key:
        return salt
    key = record_of(request.scope).key
    assert key is not None, "the setting needs API keys"
    return salt_of_key(key, salt)


class Dispatcher:
    """Answers the requests of one application, for all APIs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._json_answers = JsonAnswers(service.backlog)

    def add_route(
        self, router: APIRouter, path: str, schema: type[S], translate: Translate[S], text: str
    ) -> None:
        """Add a route that generates: it answers bodies of `schema`; see :meth:`answer`.

        `text` describes the route in /openapi.json.
        """

        async def generate(request: Request) -> Response:
            return await self.answer(request, schema, translate)

        name = path.removeprefix("/v1").strip("/").replace("/", "_")
        router.post(path, name=name, description=text, openapi_extra=takes(schema))(generate)

    async def answer(
        self, http_request: Request, schema: type[S], translate: Translate[S]
    ) -> Response:
        """Read a body, submit the choices that it requests, and return the answer.

        All choices are submitted at once, so that the engine refuses a request before the response
        begins.

        Args:
            http_request: the HTTP request with the body.
            schema: schema of the body.
            translate: makes the request and the writer of its answer from a body, the model that it
                names and the ASGI scope.

        Raises:
            HeddleError: the body is refused, the engine refuses the request, or a choice of a JSON
                answer ended with this error.
        """
        engine, request, writer = await self._service.take(
            http_request,
            schema,
            lambda body, served: (served.engine, *translate(body, served, http_request.scope)),
        )
        return await self.generate(http_request, engine, request, writer)

    async def generate(
        self,
        http_request: Request,
        engine: Engine,
        request: GenerationRequest,
        writer: AnswerWriter,
    ) -> Response:
        """Submit the choices of a translated request, and return the answer.

        Raises:
            HeddleError: see :meth:`answer`.
        """
        service = self._service
        if service.config.prefix_cache_per_key:
            request = replace(request, params=salted(request.params, http_request, service))
        record = record_of(http_request.scope)
        record.describe(request.model, request.params, n=request.n, stream=request.stream)
        # Without slow work, the engine makes the rules itself.
        rules = await self._rules(http_request, request, engine) if _is_slow(request) else None
        choices, going_on = _choices(request), record.continuation
        known: Sequence[Sequence[int]] = ()
        if going_on is not None:
            seeded = going_on.seeded([params for _, params in choices])
            choices = [(prompt, one) for (prompt, _), one in zip(choices, seeded, strict=True)]
            known = going_on.known(len(choices))
        streams = engine.generate_many(
            choices, service.backlog, rules, record.client, record.submit(), known
        )
        if request.params.extensions:
            writer.adapted(", ".join(sorted({ticket.adapted for ticket in streams.tickets})))
        if request.stream:
            if engine.config.queue_timeout or request.params.deadline:
                await _begun(http_request, streams)
            ping = service.config.stream_ping
            return EventStream(writer, streams, request.n, service.backlog, ping, going_on)
        receive = http_request.receive
        try:
            return await self._json_answers.response(writer, receive, streams, request.n)
        finally:
            record.add(streams)

    async def _rules(
        self, http_request: Request, request: GenerationRequest, engine: Engine
    ) -> TokenRules:
        """The token rules of all choices. Slow work runs in threads, not in the event loop.

        Raises:
            InvalidRequestError: an engram table is unknown, or was built for another vocabulary; a
                logits processor is unknown, or has a wrong option.
            GrammarError: the grammar does not compile.
        """
        bodies, params = self._service.bodies, request.params
        tokenizer = engine.model.tokenizer
        if params.bad_words or params.dry_multiplier:
            rules = await bodies.work(http_request, partial(token_rules, params, tokenizer))
        else:
            rules = token_rules(params, tokenizer)
        grammar = None
        if params.grammar is not None:
            grammar = tokenizer.grammars.known(params.grammar)
            if grammar is None:
                candidates = request.compile_candidates
                compiled = partial(_compiled, engine, params.grammar, candidates)
                grammar = await bodies.compile(http_request, compiled)
        if request.thinking is not None:
            grammar = request.thinking.bound(grammar)
        brought: tuple[SamplerRule, ...] = ()
        if params.extensions:  # in a thread: the first one computes the vocabulary's fingerprint
            brought = await to_thread(engine.engrams.rules, params)
            await to_thread(engine.adapters.take, params)  # to load those that are not in memory
        processors: tuple[LogitsProcessor, ...] = ()
        if params.logits_processors:
            processors = await bodies.work(http_request, partial(processors_of, params, tokenizer))
        return replace(rules, grammar=grammar, extensions=brought, processors=processors)


def _choices(request: GenerationRequest) -> list[tuple[Sequence[int] | Laid, SamplingParams]]:
    """Prompt and parameters of every choice, in the order of prompts.

    Choice i of a prompt draws with `seed + i`, so that choices differ. Only the first choice of a
    prompt scores the prompt.
    """
    params = request.params
    variants = [params]
    for index in range(1, request.n):
        seed = None if params.seed is None else params.seed + index
        # Seeds have 64 bits: the last seed wraps around to the first.
        wrapped = seed - _SEEDS if seed is not None and seed >= _SEEDS else seed
        variants.append(params.for_another_choice(wrapped))
    return [(prompt, variant) for prompt in request.prompts for variant in variants]


def _is_slow(request: GenerationRequest) -> bool:
    """Whether the token rules of a request may take too long for the event loop."""
    params = request.params
    return bool(
        params.grammar is not None
        or request.thinking is not None
        or params.bad_words
        or params.dry_multiplier
        or params.extensions
        or params.logits_processors
    )


async def _begun(http_request: Request, streams: AsyncStreams) -> None:
    """Wait for the first token, so that an error of one that waits has its HTTP status.

    Raises:
        HeddleError: the request ended with this error before its first token.
        ClientGoneError: the client closed the connection. All choices are cancelled.
    """
    try:
        await unless_gone(http_request.receive, streams.begin())
    except BaseException:
        record_of(http_request.scope).add(streams)
        streams.close()
        raise


def _compiled(engine: Engine, grammar: Grammar, candidates: Sequence[Grammar]) -> TokenGrammar:
    """Compile `grammar`.

    Raises:
        GrammarError: the grammar does not compile. If one of `candidates` does not compile either,
            the error names its field. The search for this candidate has a time limit.
    """
    try:
        return engine.prepare_grammar(grammar)
    except GrammarError:
        deadline = time.monotonic() + _BLAME_SECONDS
        for candidate in candidates:
            if time.monotonic() < deadline:
                engine.prepare_grammar(candidate)
        raise
