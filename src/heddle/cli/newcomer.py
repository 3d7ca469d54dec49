"""The default model of a command, and the advice for users who did not name a model."""

import sys

from heddle.config import DEFAULT_MODEL, HubConfig
from heddle.cores import usable_cores
from heddle.hub_place import hub_place
from heddle.memory import available_bytes


def chosen(model: str | None, hub: HubConfig) -> str:
    """The model to run. Without a name, the default, and a line on stderr suggests a better
    model."""
    if model is not None:
        return model
    from heddle.weights.suggestions import best_for

    available, cores = available_bytes(), usable_cores()
    best = best_for(available, cores, offline=hub_place(hub).offline)
    better = ""
    if best.name != DEFAULT_MODEL:
        better = (
            f" Better on this machine ({available / 1e9:.0f} GB free, {cores} cores): heddle serve"
            f" {best.name} ({best.file:g} GB to download). More: heddle suggest."
        )
    print(
        f"No model named: using {DEFAULT_MODEL}, a tiny model with poor answers.{better}",
        file=sys.stderr,
    )
    return DEFAULT_MODEL
