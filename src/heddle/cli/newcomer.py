"""The default model of a command, and the advice for users who did not name a model."""

import sys

from heddle.cli.machine import this_machine
from heddle.config import DEFAULT_MODEL, HubConfig
from heddle.hub_place import hub_place


def chosen(model: str | None, hub: HubConfig) -> str:
    """The model to run. Without a name, the default, and a line on stderr suggests a better
    model."""
    if model is not None:
        return model
    from heddle.weights.suggestions import best_for

    machine = this_machine()
    best = best_for(machine.available, machine.rate, offline=hub_place(hub).offline)
    better = ""
    if best.name != DEFAULT_MODEL:
        better = (
            f" Better on this machine ({machine}): heddle serve {best.name} ({best.file:g} GB to"
            f" download, at most {best.speed(machine.rate)} tokens/s). More: heddle suggest."
        )
    print(
        f"No model named: using {DEFAULT_MODEL}, a tiny model with poor answers.{better}",
        file=sys.stderr,
    )
    return DEFAULT_MODEL
