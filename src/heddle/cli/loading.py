"""Loads a model for a command and shows the progress."""

from typing import TYPE_CHECKING

from heddle.config import EngineConfig

if TYPE_CHECKING:
    from heddle.engine import Engine


def load(model: str, config: EngineConfig) -> "Engine":
    """Load `model` and start an engine. Raises as `Engine.load`."""
    from heddle.engine import Engine
    from heddle.weights.progress import on_console

    return Engine.load(model, config, progress=on_console())
