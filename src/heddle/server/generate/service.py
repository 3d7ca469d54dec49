"""What every route of an application shares."""

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
    """One engine as it is served.

    Attributes:
        engine: serves the requests.
        config: how.
        backlog: bounds what clients have not read.
        bodies: takes in what they send.
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
        """The name that an answer has in its `model` field: the one that the request used.

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
        """Accept as many choices as slots and queue hold when nothing else runs.

        The engine would refuse more as well, but only once each is prepared: a small body can ask
        for millions.

        Raises:
            InvalidRequestError: they are more; names `prompt` if even one choice for each is.
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
