"""The route that renders Markdown for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.extensions.page.markdown import MOST_CHARACTERS, rendered
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from heddle.server.generate.service import Service

_MOST_TEXTS = 64


class MarkdownRequest(Schema):
    """Body of `POST /page/markdown`."""

    texts: list[Annotated[str, Field(max_length=MOST_CHARACTERS)]] = Field(
        max_length=_MOST_TEXTS, description="Texts in Markdown. Models write them: trust none."
    )


class Html(BaseModel):
    """Response of `POST /page/markdown`."""

    html: list[str] = Field(
        description="The HTML of each text: without scripts, addresses and images."
    )


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/page/markdown", response_model=Html, openapi_extra=takes(MarkdownRequest))
    async def markdown(request: Request) -> Response:
        """Render Markdown that nobody trusts as HTML. Texts that take too long stay plain."""
        body = await service.bodies.take(request, MarkdownRequest, lambda body: body)
        html = await service.bodies.work(request, lambda: rendered(body.texts))
        return json_response({"html": html})

    return router
