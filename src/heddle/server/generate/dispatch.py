"""From a request to its answer: submitted at once, then sent as one JSON document or as events."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from heddle.embedding import EmbeddingParams
from heddle.errors import GrammarError
from heddle.server.generate.event_stream import EventStream
from heddle.server.generate.json_answer import JsonAnswers
from heddle.server.http.keys import salt_of_key
from heddle.text.tokenizer.token_rules import token_rules
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from heddle.engine import Engine
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Service
    from heddle.server.generate.writer import AnswerWriter
    from heddle.step import TokenGrammar, TokenRules
    from heddle.types import Grammar


_BLAME_SECONDS = 1.0
"""How long to compile candidates one by one: there may be a thousand, and other clients wait."""

Params = TypeVar("Params", SamplingParams, EmbeddingParams)


def salted(params: Params, request: Request, service: Service) -> Params:
    """The parameters with the cache salt of the request's key, if each key has its own prefixes."""
    if not service.config.prefix_cache_per_key:
        return params
    return replace(params, cache_salt=salt_of_key(request.scope, params.cache_salt))


class Dispatcher:
    """Submits the requests of one application and answers them, whatever API they came by."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._json_answers = JsonAnswers(service.backlog)

    async def answer(
        self, http_request: Request, writer: AnswerWriter, request: GenerationRequest
    ) -> Response:
        """Submit all choices at once, so that the engine refuses before the response begins.

        Raises:
            HeddleError: the engine refuses; or, for a JSON answer, a choice ended with this error.
        """
        service = self._service
        request = replace(request, params=salted(request.params, http_request, service))
        rules = await self._rules(http_request, request)
        streams = service.engine.generate_many(request.choices(), service.backlog, rules)
        if request.stream:
            return EventStream(writer, streams, request.n, service.backlog)
        return await self._json_answers.response(writer, http_request.receive, streams, request.n)

    async def _rules(self, http_request: Request, request: GenerationRequest) -> TokenRules:
        """The rules of all choices. A thread computes what would hold up the event loop.

        Raises:
            GrammarError: the grammar cannot be compiled.
        """
        engine, bodies, params = self._service.engine, self._service.bodies, request.params
        tokenizer = engine.model.tokenizer
        if params.bad_words or params.dry_multiplier:
            rules = await bodies.work(http_request, partial(token_rules, params, tokenizer))
        else:
            rules = token_rules(params, tokenizer)
        grammar = None
        if params.grammar is not None:
            grammar = tokenizer.known_grammar(params.grammar)
            if grammar is None:
                candidates = request.compile_candidates
                compiled = partial(_compiled, engine, params.grammar, candidates)
                grammar = await bodies.compile(http_request, compiled)
        if request.thinking is not None:
            grammar = request.thinking.bound(grammar)
        return replace(rules, grammar=grammar)


def _compiled(engine: Engine, grammar: Grammar, candidates: Sequence[Grammar]) -> TokenGrammar:
    """
    Raises:
        GrammarError: it cannot be compiled. Names the field of the first of `candidates` that
            cannot be compiled either, if that is found soon.
    """
    try:
        return engine.prepare_grammar(grammar)
    except GrammarError:
        until = time.monotonic() + _BLAME_SECONDS
        for candidate in candidates:
            if time.monotonic() < until:
                engine.prepare_grammar(candidate)
        raise
