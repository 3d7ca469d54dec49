"""The route of suggestions: what `heddle suggest` shows, for clients of a server."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import OutOfMemoryError
from heddle.extensions.suggest.machine import Machine, this_machine
from heddle.extensions.suggest.suggestions import (
    EMBEDDINGS,
    RERANKERS,
    SUGGESTIONS,
    Suggestion,
    best_embeddings_for,
    best_for,
)
from heddle.server.generate.api import Api
from heddle.server.http.access import ADMIN
from heddle.server.http.encoding import json_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service

Use = Literal["chat", "embeddings", "reranking"]

KEPT_SECONDS = 60.0
GB = 1e9
_USES: dict[Use, tuple[Suggestion, ...]] = {
    "chat": SUGGESTIONS,
    "embeddings": EMBEDDINGS,
    "reranking": RERANKERS,
}


class SuggestedModel(BaseModel):
    """A model to try."""

    id: str = Field(description="The name that loads and fetches it.")
    use: Use
    note: str = Field(description="Uses that the model is good for.")
    architecture: str
    memory_bytes: int = Field(description="Free memory that it needs.")
    download_bytes: int = Field(description="Size of its files.")
    steps_per_second: float = Field(
        description="Most tokens of one conversation, or vectors of short texts, that the memory"
        " allows in a second."
    )
    fits: bool = Field(description="Whether the free memory suffices.")
    best: bool = Field(description="Whether it is the best one for this machine and use.")


class MachineFigures(BaseModel):
    """The figures of the machine that the suggestions follow from."""

    available_bytes: int = Field(description="Memory that the server may still use.")
    bytes_per_second: float = Field(
        description="What all cores read from memory, measured within the last minute. Requests"
        " that ran meanwhile lower it."
    )
    other_work: float = Field(
        description="The share of the machine that other programs took meanwhile. The rate is"
        " corrected for it."
    )


class Suggestions(BaseModel):
    """Models worth trying on the server's machine."""

    object: Literal["list"] = "list"
    machine: MachineFigures
    data: list[SuggestedModel] = Field(description="By use, then by memory.")


class KeptMachine:
    """The figures of this machine, measured at most once a minute. The event loop uses it."""

    def __init__(
        self,
        measure: Callable[[], Machine] = this_machine,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure, self._now = measure, now
        self._begun_at = 0.0
        self._measuring: asyncio.Task[Machine] | None = None

    async def get(self) -> Machine:
        """The figures. Those who ask meanwhile share one measurement.

        Raises:
            OutOfMemoryError: there is no memory to measure with.
        """
        task, now = self._measuring, self._now()
        if task is None or now >= self._begun_at + KEPT_SECONDS:
            task = asyncio.create_task(asyncio.to_thread(self._measure))
            self._measuring, self._begun_at = task, now
        try:
            return await asyncio.shield(task)  # who leaves does not end it for the others
        except MemoryError:
            self._measuring = None
            raise OutOfMemoryError("there is too little free memory to measure its rate") from None


def _routes(_service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    router = APIRouter()
    kept = KeptMachine()

    @router.get("/v1/models/suggest", response_model=Suggestions, dependencies=[ADMIN])
    async def suggest() -> Response:
        """Suggest models for the server's machine, with their memory use and speed.

        The first request of a minute measures the machine for 0.3 s, which slows running streams.
        """
        return json_response(suggestions_for(await kept.get()).model_dump())

    return [router]


def suggestions_for(machine: Machine) -> Suggestions:
    """All suggestions, with what they mean on a machine."""
    best = {
        best_for(machine.available, machine.rate),
        best_embeddings_for(machine.available, machine.rate),
    }
    return Suggestions(
        machine=MachineFigures(
            available_bytes=machine.available,
            bytes_per_second=machine.rate,
            other_work=machine.other_work,
        ),
        data=[
            SuggestedModel(
                id=one.name,
                use=use,
                note=one.note,
                architecture=one.architecture,
                memory_bytes=round(one.memory * GB),
                download_bytes=round(one.file * GB),
                steps_per_second=machine.rate / (one.read * GB),
                fits=one.memory * GB <= machine.available,
                best=one in best,
            )
            for use, table in _USES.items()
            for one in table
        ],
    )


API = Api(_routes)
