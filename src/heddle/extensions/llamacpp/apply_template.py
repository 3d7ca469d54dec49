"""llama.cpp's `/apply-template`: renders a conversation with the model's chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.parameters import Api
from heddle.server.generate.chat import chat_of, functions_of
from heddle.server.generate.chat_fields import Messages, Tools  # noqa: TC001  pydantic reads them
from heddle.server.generate.mixed_prompts import MARK
from heddle.server.generate.tools import use_of
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import Schema, takes
from heddle.text.chat.illustrations import pictures_in

if TYPE_CHECKING:
    from heddle.server.generate.service import Served, Service


@decided(Api.APPLY_TEMPLATE)
class ApplyTemplateRequest(Schema):
    """Body of `POST /apply_template`."""

    model: str | None = None
    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | None = None


class Rendered(BaseModel):
    """Response of `POST /apply_template`."""

    prompt: str = Field(description="The text that the model gets for the conversation.")


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    async def apply_template(request: Request) -> Response:
        """Render a conversation with the model's chat template."""
        prompt = await service.take(request, ApplyTemplateRequest, _rendered)
        return json_response(prompt.model_dump())

    for path in ("/apply_template", "/apply-template"):  # the second is llama.cpp's spelling
        router.post(
            path,
            response_model=Rendered,
            openapi_extra=takes(ApplyTemplateRequest),
            operation_id="post" + path,
        )(apply_template)

    return router


def _rendered(body: ApplyTemplateRequest, served: Served) -> Rendered:
    chat = chat_of(body, tools=use_of(functions_of(body.tools), body.tool_choice))
    text, eyes = chat.text(served, {}), served.engine.model.eyes
    if eyes is not None and pictures_in(chat.messages):
        text = text.replace(eyes.mark, MARK)  # as /completion takes it
    return Rendered(prompt=text)
