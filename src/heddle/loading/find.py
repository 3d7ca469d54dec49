"""Finds the files of a model by its name, and checks that Heddle can run them.

Both functions import the readers, so importing this module is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.folders import cache_home

if TYPE_CHECKING:
    from heddle.hub_place import HubPlace
    from heddle.weights.progress import Progress
    from heddle.weights.sources import Found


def find_model(
    model: str, progress: Progress | None = None, place: HubPlace | None = None
) -> Found:
    """The files of a model that Heddle can run. Fetches them if necessary.

    Raises as :func:`heddle.weights.sources.find`. A model of the hub whose architecture is not
    supported is refused before its weights are fetched.
    """
    from heddle.models.build import family_of
    from heddle.weights.sources import find

    return find(model, cache_home(), progress, place=place, check=family_of)


def check_supported(found: Found) -> None:
    """Check that Heddle can run a model, without reading its weights.

    Raises:
        UnsupportedModelError, ModelFileError: it cannot; says why.
    """
    from heddle.models.build import build, family_of
    from heddle.weights.formats import open_checkpoint
    from heddle.weights.tensor_types import unsupported

    with open_checkpoint(found.path, found.base, family_of) as checkpoint:
        build(checkpoint)
        checkpoint.tokenizer()
        for name, tensor in checkpoint.tensors.items():
            if not tensor.type.is_supported:
                raise unsupported(tensor.type, name)
