"""llama.cpp's `/props`: what the server runs.

`GET /props` is a probe. It loads no model, and answers for an unloaded one what its last load said.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import ModelUnloadedError
from heddle.extensions.admin.settings import AdminSettings
from heddle.extensions.llamacpp.generation_settings import generation_settings
from heddle.extensions.metrics.settings import MetricsSettings
from heddle.server.generate.mixed_prompts import MARK
from heddle.server.generate.service import Served
from heddle.server.http.encoding import json_response
from heddle.server.http.fields import is_on

if TYPE_CHECKING:
    from heddle.engine import Engine
    from heddle.server.generate.service import Service
    from heddle.server.generate.usage import Json


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()
    known: dict[str, Json] = {}

    def remember(name: str, engine: Engine) -> None:
        for forgotten in known.keys() - set(service.registry.names):
            del known[forgotten]
        known[name] = _props(Served(name, engine, service.config, service.backlog))

    service.registry.on_loaded(remember)

    @router.get("/props")
    async def props(request: Request, model: str | None = None, autoload: str = "0") -> Response:
        """Report the model, its chat template, and the defaults of sampling parameters.

        With `autoload=true` this loads the model.
        """
        if is_on(autoload):
            await service.engine(request, model)
        name, is_sleeping = service.name_of(model), False
        try:
            service.probed(model)
        except ModelUnloadedError:
            if name not in known:
                raise
            is_sleeping = True
        named = {"model_alias": model or name, "is_sleeping": is_sleeping}
        return json_response(known[name] | named)

    return router


def _props(served: Served) -> Json:
    engine = served.engine
    model, tokenizer = engine.model, engine.model.tokenizer
    text = tokenizer.token_text
    return {
        "default_generation_settings": {
            "n_ctx": engine.context,
            "params": generation_settings(served.sampling_params(), engine.context),
        },
        "total_slots": engine.config.slots,
        "model_path": str(model.info.path),
        "model_ftype": model.info.quantisation,
        "modalities": {"vision": model.eyes is not None, "video": False, "audio": False},
        "media_marker": MARK,
        "chat_template": "" if model.template is None else model.template.source,
        "chat_template_caps": {},
        "bos_token": "" if tokenizer.bos_id is None else text(tokenizer.bos_id),
        "eos_token": "" if tokenizer.eos_id is None else text(tokenizer.eos_id),
        "build_info": f"heddle {version('heddle')}",
        "endpoint_slots": served.config.of(AdminSettings).slots_route,
        "endpoint_props": False,
        "endpoint_metrics": served.config.of(MetricsSettings).metrics_route,
    }
