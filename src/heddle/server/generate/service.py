"""The objects that all routes of an application share, and the model that answers one request."""

from __future__ import annotations

import asyncio
import hashlib
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from heddle.config import MAX_MODEL_NAME
from heddle.errors import (
    BlindModelError,
    InvalidRequestError,
    ModelNotFoundError,
    ModelUnloadedError,
)
from heddle.server.http.connection import unless_gone
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from starlette.requests import Request

    from heddle.config import ServerConfig
    from heddle.engine import Engine
    from heddle.engine.adapters import P
    from heddle.engine.streaming.streams import Backlog
    from heddle.hosting.registry import Registry
    from heddle.sampling_params import SamplingParams
    from heddle.server.http.body import Bodies

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")

LATEST = ":latest"
"""The tag that names in Ollama's API have if they have no other tag."""


@dataclass(frozen=True, slots=True)
class Served:
    """The loaded model that answers one request.

    Attributes:
        name: the name for the answer's `model` field: the name that the request used. Some clients
            compare the two. Claude Code drops its earlier reasoning if they differ (vLLM issue
            51266: vLLM answers with its first name). A request without a name, or with an empty
            name as from llama.vim, gets the model's id.
        engine: runs requests of this model.
        config: settings of the server.
        backlog: limits the bytes that clients have not read.
        model: the model's own name; empty: it is the default model, or no adapter is a default.
        adapter: the adapter that the name stands for; empty: it stands for a model.
    """

    name: str
    engine: Engine
    config: ServerConfig
    backlog: Backlog
    model: str = ""
    adapter: str = ""

    @property
    def fingerprint(self) -> str | None:
        """The `system_fingerprint` of answers; None if the model's files have changed.

        Equal fingerprints promise equal bits: the same request with a seed gets the same tokens.
        """
        if self.engine.fingerprint is None:
            return None
        settings = (sorted(self.config.sampling.items()), self.config.open_schemas)
        return fingerprint_of(self.engine.fingerprint, settings)

    def sampling_params(self, **given: Any) -> SamplingParams:
        """Sampling parameters: the values in `given`, else the server's defaults, else the model's.

        They have the adapter that the request named as its model.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        params = self.engine.model.sampling_params(**{**self.config.sampling, **given})
        has_some = self.adapter or self.engine.adapters.library.has_defaults
        return self.adapted(params) if has_some else params

    def adapted(self, params: P) -> P:
        """`params` with the adapter that the request named as its model, or with the defaults."""
        return self.engine.adapters.asked(params, self.model, self.adapter)

    def check_choices(self, prompts: int, n: int) -> None:
        """Refuse a request with more choices than slots and queue hold.

        The engine would refuse it too, but only after the preparation of each choice, and a small
        body can request millions of choices.

        Raises:
            InvalidRequestError: the request has too many choices. The error names `prompt` if the
                prompts alone are too many, else `n`.
        """
        room = self.engine.config.slots + self.engine.config.queue
        if prompts * n <= room:
            return
        requested = counted(prompts, "prompt")
        if n > 1:
            factors = f" ({requested} times {n})" if prompts > 1 else ""
            requested = f"{prompts * n} choices{factors}"
        raise InvalidRequestError(
            f"the request has {requested}, but slots and queue hold {room}; send fewer at a time or"
            " raise the setting `queue`",
            param="prompt" if prompts > room else "n",
        )


@dataclass(frozen=True, slots=True)
class Service:
    """The loaded models, with the objects that serve them over HTTP.

    Attributes:
        registry: the models.
        config: settings of the server.
        backlog: limits the bytes that clients have not read, of all models.
        bodies: reads and checks request bodies.
    """

    registry: Registry
    config: ServerConfig
    backlog: Backlog
    bodies: Bodies

    @property
    def names(self) -> tuple[str, ...]:
        """The names that requests may use: of models, aliases of the default model, adapters."""
        models = *self.registry.names, *self.config.alias
        return tuple(dict.fromkeys((*models, *self.registry.libraries.adapters.names)))

    def served(self, name: str | None) -> Served:
        """The model that a request names, perhaps by an adapter. Without a name, the default model.

        Raises:
            ModelNotFoundError: no model has this name.
            ModelUnloadedError: the model is known but not loaded; `load` loads it.
            ModelUnavailableError: the model loads, unloads, or failed to load.
        """
        model, adapter = self._model_named(name) if name else None, ""
        if name and model is None:
            model, adapter = self._adapter_named(name)
        found, engine = self.registry.find(model)
        adds = self.registry.libraries.adapters.has_defaults
        own = found if adds and found != self.registry.default else ""
        return Served(name or found, engine, self.config, self.backlog, own, adapter)

    def probed(self, name: str | None) -> Engine:
        """The engine of a model for a probe, which neither loads it nor renews its `keep_alive`.

        Raises as :meth:`served`.
        """
        return self.registry.engine(self.name_of(name), renew=False)

    def name_of(self, name: str | None) -> str:
        """The registry's name of the model that `name` stands for, loaded or not.

        The name of an adapter stands for the model that it changes.

        Raises:
            ModelNotFoundError: it stands for no model.
        """
        if not name:
            return self.registry.default
        model = self._model_named(name)
        return self._adapter_named(name)[0] if model is None else model

    def _adapter_named(self, name: str) -> tuple[str, str]:
        """An adapter that `name` stands for, after the registry's name of the model it changes.

        With `any_model`, the default model if there is no such adapter.

        Raises:
            ModelNotFoundError: there is none.
        """
        adapters = self.registry.libraries.adapters
        for spelling in _spellings(name):
            of = adapters.model_of(spelling)
            if of is not None:
                return of or self.registry.default, spelling
        base, _, adapter = name.rpartition(":")
        model, of = self._model_named(base) if base else None, adapters.model_of(adapter)
        if model is not None and of is not None and model == (of or self.registry.default):
            return model, adapter
        if self.config.any_model and len(name) <= MAX_MODEL_NAME:
            return self.registry.default, ""
        known = ", ".join(map(repr, self.names)) or "none"
        raise ModelNotFoundError(
            f"model {reprlib.repr(name)} not found; this server has {known}. Send one of these"
            " names, load the model with POST /models/load, or start the server with --alias NAME"
            " or --any-model",
            param="model",
        )

    def _model_named(self, name: str) -> str | None:
        """The registry's name of the model that `name` stands for; None: it stands for none."""
        for spelling in _spellings(name):
            if spelling in self.config.alias:
                return self.registry.default
            if spelling in self.registry:
                return spelling
        return None

    async def take(
        self, request: Request, schema: type[S], translate: Callable[[S, Served], T]
    ) -> T:
        """Read a body, find the model that it names, and return the result of `translate`.

        With the setting `autoload`, a known model that is not loaded is loaded first. See
        `Bodies.take` for the reading of the body.

        Raises:
            ModelNotFoundError, ModelUnavailableError: see :meth:`served`.
            HeddleError: the body is refused, or the model cannot be loaded.
        """

        def translated(body: S) -> T:
            served = self.served(getattr(body, "model", None))
            try:
                return translate(body, served)
            except BlindModelError as error:
                raise self.naming_others(error) from None

        return await self.bodies.take(
            request, schema, translated, lambda error: self.load(request, error)
        )

    def naming_others(self, error: BlindModelError) -> BlindModelError:
        """The error, with the names of the loaded models that see pictures."""
        engines = self.registry.engines.items()
        seeing = [repr(name) for name, engine in engines if engine.model.eyes is not None]
        said = f"These models of this server see pictures: {', '.join(seeing) or 'none'}"
        return BlindModelError(f"{error.message}. {said}", param=error.param)

    async def engine(self, request: Request, name: str | None) -> Engine:
        """The engine of the model that a request without a body names. Raises as :meth:`take`."""
        try:
            return self.served(name).engine
        except ModelUnloadedError as error:
            await self.load(request, error)
        return self.served(name).engine

    async def load(self, request: Request, error: ModelUnloadedError) -> None:
        """Load the model that `error` names. The load continues if the client leaves."""
        await unless_gone(request.receive, loaded(self.registry.begin_known(error.model)))


def fingerprint_of(*parts: object) -> str:
    """A `system_fingerprint` that names all of these."""
    digest = hashlib.sha256(" ".join(map(str, parts)).encode())
    return f"bits-{digest.hexdigest()[:16]}"


def _spellings(name: str) -> Iterator[str]:
    """The name as it is, and without what Ollama's clients add to it: the tag `:latest`, and the
    host of a name of the hub. Also with that tag, if it has none."""
    yield name
    short = without_host(name)
    for spelling in (short, short.removesuffix(LATEST), short + LATEST):
        if spelling:
            yield spelling


def without_host(name: str) -> str:
    """The name of a model of the hub without the hub's host, which Ollama's names have."""
    return name.removeprefix("huggingface.co/").removeprefix("hf.co/")


async def loaded(load: Future[Engine]) -> Engine:
    """The engine of a load. Cancelling this does not cancel the load."""
    return await asyncio.shield(asyncio.wrap_future(load))
