"""One thread per loaded model turns requests into steps and steps into text."""

from heddle.engine.engine import Engine

__all__ = ["Engine"]
