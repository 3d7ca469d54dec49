"""`heddle inspect`: shows the content of a model file, and how much memory the model needs."""

from heddle.cli.options import AsJson, Model, with_settings
from heddle.config import DEFAULT_MODEL, HubConfig
from heddle.folders import cache_home
from heddle.hub_place import hub_place


@with_settings
def inspect(model: Model = DEFAULT_MODEL, *, as_json: AsJson = False, hub: HubConfig) -> None:
    """Show a model's metadata, tensors and memory use, without loading the model.

    The exit code is 2 if Heddle cannot run the model.
    """
    from heddle.loading.chat_templates import answers_of
    from heddle.loading.find import check_supported
    from heddle.weights.inspect import describe
    from heddle.weights.progress import on_console
    from heddle.weights.sources import find

    found = find(model, cache_home(), on_console(), place=hub_place(hub))
    description = describe(found.path, found.name, found.sampling, answers_of(found))
    if as_json:
        print(description.to_json())
    else:
        from rich.console import Console

        from heddle.cli.description_tables import print_description

        print_description(description, Console())
    check_supported(found)
