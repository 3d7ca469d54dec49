"""`heddle pull`: fetch a model, so that later commands find it."""

from heddle.cli.options import Model, with_settings
from heddle.config import DEFAULT_MODEL, HubConfig, cache_home
from heddle.hub_place import hub_place


@with_settings
def pull(model: Model = DEFAULT_MODEL, *, hub: HubConfig) -> None:
    """Download a model to its cache, and print its path."""
    from heddle.weights.progress import on_console
    from heddle.weights.sources import resolve

    print(resolve(model, cache_home(), on_console(), place=hub_place(hub)))
