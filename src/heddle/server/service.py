"""What every route of an application shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import ModelNotFoundError

if TYPE_CHECKING:
    from heddle.config import ServerConfig
    from heddle.engine import Engine
    from heddle.server.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Service:
    """One engine as it is served.

    Attributes:
        engine: serves the requests.
        config: how.
        metrics: of the engine.
    """

    engine: Engine
    config: ServerConfig
    metrics: Metrics

    def check_model(self, name: str | None) -> None:
        """Accept the loaded model's id, and a request that names none.

        Raises:
            ModelNotFoundError: another model is named.
        """
        loaded = self.engine.model.info.id
        if name not in (None, loaded):
            raise ModelNotFoundError(
                f"model {name!r} is not loaded; this server has {loaded!r}", param="model"
            )
