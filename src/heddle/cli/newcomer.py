"""The model of a command without one, and what is said to who has named none."""

import sys

from heddle.config import DEFAULT_MODEL, HubConfig
from heddle.cores import usable_cores
from heddle.hub_place import hub_place
from heddle.memory import available_bytes


def chosen(model: str | None, hub: HubConfig) -> str:
    """The model to run. If none is named, the default; a line on stderr says what is better."""
    if model is not None:
        return model
    from heddle.weights.suggestions import best_for

    available, cores = available_bytes(), usable_cores()
    best = best_for(available, cores, offline=hub_place(hub).offline)
    better = ""
    if best.name != DEFAULT_MODEL:
        better = (
            f" Better on this machine ({available / 1e9:.0f} GB free, {cores} cores): heddle serve"
            f" {best.name} ({best.file:g} GB to fetch). More: heddle suggest."
        )
    print(
        f"No model is named, so this is {DEFAULT_MODEL}, a tiny model that answers badly.{better}",
        file=sys.stderr,
    )
    return DEFAULT_MODEL
