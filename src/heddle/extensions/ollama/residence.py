"""How long models stay loaded: bodies without a prompt, and `keep_alive`.

A body without a prompt loads its model, or with a `keep_alive` of 0 unloads it. Both need what
admin routes need. Only `autoload` lets other clients load a known model.

`keep_alive` of other bodies acts if the client may administer the server and the server loads
models on demand. Without `autoload` an unloaded model would be gone for all clients.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from heddle.errors import AuthenticationError, BlindModelError, ForbiddenError
from heddle.extensions.ollama.fields import seconds_of
from heddle.extensions.ollama.schemas import ChatRequest, GenerateRequest
from heddle.extensions.ollama.writer import Clock, now
from heddle.server.generate.service import loaded
from heddle.server.http.access import check_admin
from heddle.server.http.connection import unless_gone
from heddle.server.http.encoding import json_response
from heddle.server.http.record import record_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from heddle.engine import Engine
    from heddle.extensions.ollama.schemas import GenerationBody
    from heddle.server.generate.dispatch import Dispatcher, Translate
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Service
    from heddle.server.generate.usage import Json
    from heddle.server.generate.writer import AnswerWriter

B = TypeVar("B", ChatRequest, GenerateRequest)


class Residence:
    """Answers bodies, and keeps, loads or unloads their models."""

    def __init__(self, service: Service, dispatcher: Dispatcher) -> None:
        self._service = service
        self._dispatcher = dispatcher

    async def answer(
        self, request: Request, schema: type[B], translate: Translate[B], empty: Json
    ) -> Response:
        """Answer a body. The answer to a body without a prompt has the fields `empty`.

        Raises:
            ForbiddenError, AuthenticationError: the body loads or unloads a model, and the client
                may not do this.
            HeddleError: see `Dispatcher.answer`.
        """
        service = self._service

        def translated(body: B) -> B | tuple[Engine, GenerationRequest, AnswerWriter]:
            if body.is_empty:
                return body
            served = service.served(body.model)
            try:
                generation, writer = translate(body, served, request.scope)
            except BlindModelError as error:
                raise service.naming_others(error) from None
            self.keep(request, body.model, body.keep_alive)
            return served.engine, generation, writer

        made = await service.bodies.take(
            request, schema, translated, lambda error: service.load(request, error)
        )
        if isinstance(made, tuple):
            return await self._dispatcher.generate(request, *made)
        return json_response(await self._settled(request, made) | empty)

    def keep(self, request: Request, model: str, keep_alive: float | str | None) -> None:
        """Keep a model after its requests as `keep_alive` says, or ignore the field."""
        if keep_alive is None:
            return
        registry = self._service.registry
        if registry.config.autoload and _may_administer(request):
            registry.keep(self._service.name_of(model), seconds_of(keep_alive))
        else:
            record_of(request.scope).ignored.append("keep_alive")

    async def _settled(self, request: Request, body: GenerationBody) -> Json:
        """Load or unload the model of a body without a prompt."""
        service, registry = self._service, self._service.registry
        name = service.name_of(body.model)
        unloads = body.keep_alive is not None and seconds_of(body.keep_alive) == 0
        if unloads:
            check_admin(request)
            if name in registry.engines:
                await asyncio.to_thread(registry.unload, name)
        else:
            if name not in registry.engines:
                if not registry.config.autoload:
                    check_admin(request)
                await unless_gone(request.receive, loaded(registry.begin_known(name)))
            self.keep(request, body.model, body.keep_alive)
        done = {"done": True, "done_reason": "unload" if unloads else "load"}
        return {
            "model": body.model,
            "created_at": now(),
            **done,
            **Clock.of(request.scope).durations(),
        }


def _may_administer(request: Request) -> bool:
    """Whether a request may do what admin routes do."""
    try:
        check_admin(request)
    except (AuthenticationError, ForbiddenError):
        return False
    return True
