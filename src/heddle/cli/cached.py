"""`heddle list` and `heddle rm`: the models in the caches."""

import json
import time
from typing import Annotated

import typer

from heddle.cli.options import AsJson, with_settings
from heddle.config import HubConfig
from heddle.folders import cache_home
from heddle.hub_place import hub_place
from heddle.sizes import counted


@with_settings
def list_models(*, as_json: AsJson = False, hub: HubConfig) -> None:
    """List the models in the caches: name, kind, size, and day of the last use."""
    from heddle.cli.text_table import text_table
    from heddle.weights.cached import cached_models

    home, place = cache_home(), hub_place(hub)
    models = cached_models(home, place)
    if as_json:
        shown = [
            {
                "name": model.name,
                "kind": model.kind,
                "bytes": model.bytes,
                "last_used": _time(model.used, "%Y-%m-%dT%H:%M:%SZ"),
                "path": str(model.path),
            }
            for model in models
        ]
        print(json.dumps(shown, indent=2))
        return
    rows = [
        (model.name, model.kind, _size(model.bytes), _time(model.used, "%Y-%m-%d"))
        for model in models
    ]
    if rows:
        print(text_table(("name", "kind", "size", "last used"), rows, right={2}))
    total = _size(sum(model.bytes for model in models))
    print(f"{counted(len(models), 'model')}, {total}, in {home / 'models'} and {place.cache}")


@with_settings
def remove(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A name that `heddle list` shows. A repository name without a quant removes all"
            " its models.",
        ),
    ],
    *,
    hub: HubConfig,
) -> None:
    """Delete a model from its cache."""
    from heddle.weights.cached import remove

    print(f"freed {_size(remove(name, cache_home(), hub_place(hub)))}")


def _size(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 10**9 else f"{size / 1e6:,.1f} MB"


def _time(seconds: float, form: str) -> str:
    return time.strftime(form, time.gmtime(seconds))
