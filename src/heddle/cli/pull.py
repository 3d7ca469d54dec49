"""`heddle pull`: fetch a model, so that later commands find it."""

from heddle.cli.options import Model
from heddle.config import DEFAULT_MODEL, cache_home


def pull(model: Model = DEFAULT_MODEL) -> None:
    """Download a model to the cache folder, and print its path."""
    from heddle.weights.progress import on_console
    from heddle.weights.sources import resolve

    print(resolve(model, cache_home(), on_console()))
