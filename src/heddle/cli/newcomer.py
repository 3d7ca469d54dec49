"""The default model of a command, and the advice for users who did not name a model."""

import sys

from heddle.config import DEFAULT_MODEL
from heddle.doors import extensions


def chosen(model: str | None) -> str:
    """The model to run. Without a name, the default, and a line on stderr says where to find a
    better one."""
    if model is not None:
        return model
    advice = [one.advice for one in extensions().values()]
    said = f"No model named: using {DEFAULT_MODEL}, a tiny model with poor answers."
    print(" ".join(filter(None, [said, *advice])), file=sys.stderr)
    return DEFAULT_MODEL
