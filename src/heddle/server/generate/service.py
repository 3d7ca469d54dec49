"""What all routes of an application share."""

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
    """One engine, and what serves it over HTTP.

    Attributes:
        engine: runs the requests.
        config: the server's settings.
        backlog: bounds the bytes that clients have not read.
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

    def model_name(self, asked: str | None) -> str:
        """The name for an answer's `model` field: the name that the request used.

        Some clients compare the two. Claude Code drops its earlier reasoning if they differ (vLLM
        issue 51266), since vLLM answers with its first name. A request without a name, or with an
        empty one as from llama.vim, gets the loaded model's id.

        Raises:
            ModelNotFoundError: another model is named.
        """
        if not asked:
            return self.names[0]
        if asked in self.names or (self.config.any_model and len(asked) <= MAX_MODEL_NAME):
            return asked
        known = ", ".join(map(repr, self.names))
        raise ModelNotFoundError(
            f"model {reprlib.repr(asked)} is not loaded; this server has {known}. Name one of them,"
            " or start the server with --alias NAME or --any-model",
            param="model",
        )

    def check_choices(self, prompts: int, n: int) -> None:
        """Refuse more choices than slots and queue hold together.

        The engine would refuse them too, but only after preparing each one. A small body can ask
        for millions.

        Raises:
            InvalidRequestError: there are more. Names `prompt` if one choice for each prompt is too
                many already, else `n`.
        """
        room = self.engine.config.slots + self.engine.config.queue
        if prompts * n <= room:
            return
        asked = f"{prompts} prompts"
        if n > 1:
            asked = f"{prompts * n} choices" + (f" ({asked} times {n})" if prompts > 1 else "")
        raise InvalidRequestError(
            f"{asked} are asked for, but slots and queue hold {room}; send fewer at a time or raise"
            " the setting `queue`",
            param="prompt" if prompts > room else "n",
        )
