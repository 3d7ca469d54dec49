"""Small random models of each architecture: a file for each family, found by its name.

A family's file exports `MODELS`. `data/ARCHITECTURE_logits.json` has their logits.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.tiny.base import TinyModel

FAMILIES: dict[str, tuple[TinyModel, ...]] = {
    file.name: importlib.import_module(f"{__name__}.{file.name}").MODELS
    for file in pkgutil.iter_modules(__path__)
    if not file.name.startswith("base")
}
"""The tiny models of each family, by the name of its file."""

MODELS = tuple(model for models in FAMILIES.values() for model in models)
