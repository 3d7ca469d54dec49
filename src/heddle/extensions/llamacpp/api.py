"""llama.cpp's API: completion, infill, embeddings, chat templates, properties, files of slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.llamacpp import apply_template, completion, embedding, infill, props, slots
from heddle.extensions.llamacpp.errors import SHAPE
from heddle.server.generate.api import Api

if TYPE_CHECKING:
    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, dispatcher: Dispatcher) -> list[APIRouter]:
    return [
        completion.routes(dispatcher),
        infill.routes(dispatcher),
        embedding.routes(service),
        apply_template.routes(service),
        props.routes(service),
        slots.routes(service),
    ]


API = Api(_routes, SHAPE)
