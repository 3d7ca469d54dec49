"""`heddle suggest`: models by their memory use, and the best model for this machine."""

from heddle.cores import usable_cores
from heddle.memory import available_bytes


def suggest() -> None:
    """Show recommended models by their memory use."""
    from heddle.cli.text_table import text_table
    from heddle.weights.suggestions import best_for, rows

    available, cores = available_bytes(), usable_cores()
    best = best_for(available, cores)
    print(text_table(("memory", "model", "download", "for"), rows(), right={0, 2}))
    print(
        f"\nFor this machine ({available / 1e9:.0f} GB free, {cores} cores):"
        f" heddle serve {best.name}"
    )
