"""`heddle pull`: fetch a model, so that later commands find it."""

from heddle.cli.options import Model, with_settings
from heddle.config import DEFAULT_MODEL, HubConfig
from heddle.hub_place import hub_place


@with_settings
def pull(model: Model = DEFAULT_MODEL, *, hub: HubConfig) -> None:
    """Download a model to its cache, and print its path."""
    from heddle.loading.find import find_model
    from heddle.weights.progress import on_console

    print(find_model(model, on_console(), hub_place(hub)).path)
