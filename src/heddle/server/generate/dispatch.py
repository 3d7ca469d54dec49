"""From a job to its answer: submitted at once, then sent whole or as events."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from heddle.embedding import EmbeddingParams
from heddle.errors import GrammarError
from heddle.server.generate import request as intake
from heddle.server.generate.event_stream import EventStream
from heddle.server.generate.json_answer import WholeAnswers
from heddle.server.http.keys import salt_of_key
from heddle.text.tokenizer.token_rules import token_rules
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from heddle.engine import Engine
    from heddle.server.api.openai.completion_writers import Answer
    from heddle.server.generate.request import Job
    from heddle.server.generate.service import Service
    from heddle.step import TokenGrammar
    from heddle.types import Grammar


_BLAME_SECONDS = 1.0
"""How long to look for the function to blame: there may be a thousand, and others wait."""

Params = TypeVar("Params", SamplingParams, EmbeddingParams)


def salted(params: Params, request: Request, service: Service) -> Params:
    """The parameters with the salt of the request's key, where a key scopes what can be found."""
    if not service.config.prefix_cache_per_key:
        return params
    return replace(params, cache_salt=salt_of_key(request.scope, params.cache_salt))


class Answering:
    """Makes the answers of one application, whatever their shape."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._whole = WholeAnswers(service.backlog)

    async def answer(self, request: Request, writer: Answer, job: Job) -> Response:
        """Submit everything at once, so that a refusal comes before the response begins.

        Raises:
            HeddleError: the engine refuses; of an answer in one piece, what it ended with.
        """
        service = self._service
        params = salted(job.params, request, service)
        job = replace(job, params=params)
        # What takes long is not made in the event loop, which finds it made.
        tokenizer = service.engine.model.tokenizer
        if params.bad_words or params.dry_multiplier:
            await service.bodies.work(request, partial(token_rules, params, tokenizer))
        if params.grammar is not None:
            _held = tokenizer.known_grammar(params.grammar)
            if _held is None:
                compiled = partial(_compiled, service.engine, params.grammar, job.suspects)
                _held = await service.bodies.compile(request, compiled)
        streams = service.engine.generate_many(intake.choices(job), service.backlog)
        if job.stream:
            return EventStream(writer, streams, job.n, service.backlog)
        return await self._whole.response(writer, request.receive, streams, job.n)


def _compiled(engine: Engine, grammar: Grammar, suspects: Sequence[Grammar]) -> TokenGrammar:
    """
    Raises:
        GrammarError: it cannot be compiled. Names what is to blame, if one of `suspects` is and
            that is found soon.
    """
    try:
        return engine.prepare_grammar(grammar)
    except GrammarError:
        until = time.monotonic() + _BLAME_SECONDS
        for suspect in suspects:
            if time.monotonic() < until:
                engine.prepare_grammar(suspect)
        raise
