"""`heddle suggest`: models by their memory use, and the best model for this machine."""

from heddle.cli.text_table import text_table
from heddle.config import DEFAULT_MODEL, HubConfig
from heddle.extensions.suggest.machine import this_machine
from heddle.extensions.suggest.suggestions import SUGGESTIONS, best_for, rows
from heddle.hub_place import hub_place

_DISTURBED = 0.1
"""Share of the machine in other programs from which the rate is called an estimate."""


def suggest() -> None:
    """Show recommended models by their memory use, with their speed on this machine."""
    machine = this_machine()
    best = best_for(machine.available, machine.rate)
    head = ("memory", "model", "download", "tokens/s", "for")
    speeds = [one.speed(machine.rate) for one in SUGGESTIONS]
    lines = [(*row[:3], speed, row[3]) for row, speed in zip(rows(), speeds, strict=True)]
    print(text_table(head, lines, right={0, 2, 3}))
    print(
        "\ntokens/s: at most, for one conversation. A token reads the weights that it uses, and"
        f" this machine reads {machine.rate / 1e9:.1f} GB/s from memory (measured now)."
    )
    if machine.other_work > _DISTURBED:
        print(
            f"Other programs took {machine.other_work:.0%} of the machine meanwhile. The rate is an"
            " estimate for the machine without them; run this again when they have ended."
        )
    print(
        f"\nFor this machine ({machine}): heddle serve {best.name}"
        f" (at most {best.speed(machine.rate)} tokens/s)"
    )


def advice(hub: HubConfig) -> str:
    """A sentence that names a better model for this machine than the default; empty without one."""
    machine = this_machine()
    best = best_for(machine.available, machine.rate, offline=hub_place(hub).offline)
    if best.name == DEFAULT_MODEL:
        return ""
    return (
        f"Better on this machine ({machine}): heddle serve {best.name} ({best.file:g} GB to"
        f" download, at most {best.speed(machine.rate)} tokens/s). More: heddle suggest."
    )
