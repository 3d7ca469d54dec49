"""`heddle suggest`: models by the memory that they need, and the best one for this machine."""

from heddle.cores import usable_cores
from heddle.memory import available_bytes


def suggest() -> None:
    """Show models worth trying, by the memory that they need."""
    from heddle.cli.text_table import text_table
    from heddle.weights.suggestions import best_for, rows

    available, cores = available_bytes(), usable_cores()
    best = best_for(available, cores)
    print(text_table(("memory", "model", "download", "for"), rows(), right={0, 2}))
    print(
        f"\nFor this machine ({available / 1e9:.0f} GB free, {cores} cores):"
        f" heddle serve {best.name}"
    )
