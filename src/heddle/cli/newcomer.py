"""The default model of a command, and the advice for users who did not name a model."""

import sys

from heddle.config import DEFAULT_MODEL, HubConfig
from heddle.doors import extensions, refer


def chosen(model: str | None, hub: HubConfig) -> str:
    """The model to run. Without a name, the default, and a line on stderr suggests a better
    model."""
    if model is not None:
        return model
    advice = [refer(one.advice)(hub) for one in extensions().values() if one.advice]
    said = f"No model named: using {DEFAULT_MODEL}, a tiny model with poor answers."
    print(" ".join(filter(None, [said, *advice])), file=sys.stderr)
    return DEFAULT_MODEL
