"""What every route of an application shares."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import InvalidRequestError, ModelNotFoundError

if TYPE_CHECKING:
    from heddle.config import ServerConfig
    from heddle.engine import Engine
    from heddle.engine.backlog import Backlog
    from heddle.server.body import Bodies
    from heddle.server.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Service:
    """One engine as it is served.

    Attributes:
        engine: serves the requests.
        config: how.
        metrics: of the engine.
        backlog: bounds what clients have not read.
        bodies: takes in what they send.
    """

    engine: Engine
    config: ServerConfig
    metrics: Metrics
    backlog: Backlog
    bodies: Bodies

    def check_model(self, name: str | None) -> None:
        """Accept the loaded model's id, and a request that names none.

        Raises:
            ModelNotFoundError: another model is named.
        """
        loaded = self.engine.model.info.id
        if name not in (None, loaded):
            raise ModelNotFoundError(
                f"model {reprlib.repr(name)} is not loaded; this server has {loaded!r}",
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
