"""Ollama's API: chats, prompts, embeddings and models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.ollama import administration, embeddings, generation, models
from heddle.extensions.ollama.errors import SHAPE
from heddle.extensions.ollama.residence import Residence
from heddle.server.generate.api import Api
from heddle.server.http.encoding import LINES

if TYPE_CHECKING:
    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, dispatcher: Dispatcher) -> list[APIRouter]:
    residence = Residence(service, dispatcher)
    return [
        generation.routes(residence),
        embeddings.routes(service, residence),
        models.routes(service),
        administration.routes(service),
    ]


API = Api(_routes, errors=SHAPE, stream=LINES, unserved=("/api/{rest:path}",))
