"""The objects that all routes of an application share."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.config import MAX_MODEL_NAME
from heddle.errors import InvalidRequestError, ModelNotFoundError

if TYPE_CHECKING:
    from heddle.config import ServerConfig
    from heddle.engine import Engine
    from heddle.engine.backlog import Backlog
    from heddle.server.http.body import Bodies


@dataclass(frozen=True, slots=True)
class Service:
    """One engine, with the objects that serve it over HTTP.

    Attributes:
        engine: runs requests.
        config: settings of the server.
        backlog: limits the bytes that clients have not read.
        bodies: reads and checks request bodies.
    """

    engine: Engine
    config: ServerConfig
    backlog: Backlog
    bodies: Bodies

    @property
    def names(self) -> tuple[str, ...]:
        """The loaded model's id, then its aliases."""
        return tuple(dict.fromkeys((self.engine.model.info.id, *self.config.alias)))

    def model_name(self, name: str | None) -> str:
        """The name for an answer's `model` field: the name that the request used.

        Some clients compare the two names. Claude Code drops its earlier reasoning if they differ
        (vLLM issue 51266: vLLM answers with its first name). A request without a name, or with an
        empty name as from llama.vim, gets the loaded model's id.

        Raises:
            ModelNotFoundError: the request names another model.
        """
        if not name:
            return self.names[0]
        if name in self.names or (self.config.any_model and len(name) <= MAX_MODEL_NAME):
            return name
        known = ", ".join(map(repr, self.names))
        raise ModelNotFoundError(
            f"model {reprlib.repr(name)} is not loaded; this server has {known}. Send one of these"
            " names, or start the server with --alias NAME or --any-model",
            param="model",
        )

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
        requested = f"{prompts} prompts"
        if n > 1:
            factors = f" ({requested} times {n})" if prompts > 1 else ""
            requested = f"{prompts * n} choices{factors}"
        raise InvalidRequestError(
            f"the request has {requested}, but slots and queue hold {room}; send fewer at a time or"
            " raise the setting `queue`",
            param="prompt" if prompts > room else "n",
        )
