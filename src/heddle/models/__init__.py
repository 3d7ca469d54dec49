"""Architectures. The file name is the registry: `llama.py` serves files that say `llama`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, cast

from heddle.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.base import Model

_NOT_ARCHITECTURES = {"base", "ops"}


def architectures() -> list[str]:
    """Names of the architectures this build can run."""
    found = {module.name for module in pkgutil.iter_modules(__path__)}
    return sorted(found - _NOT_ARCHITECTURES)


def build(metadata: Mapping[str, object]) -> Model:
    """The model that `general.architecture` names, with this file's hyperparameters.

    Raises:
        UnsupportedModelError: no architecture file has that name.
        ModelFileError: a hyperparameter is missing or senseless.
    """
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelFileError(
            f"general.architecture must be a string, got {name!r}", field="general.architecture"
        )
    known = architectures()
    if name not in known:
        raise UnsupportedModelError(
            f"architecture {name!r} is not supported; supported: {', '.join(known)}",
            param="general.architecture",
        )
    module = importlib.import_module(f"{__name__}.{name}")
    return cast("Model", module.build(metadata))
