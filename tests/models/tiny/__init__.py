"""Small random models of each architecture: a file for each family, found by its name.

A family's file exports `MODELS`, and `FOLDERS` of what GGUF has not.
`data/ARCHITECTURE_logits.json` has their logits.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.tiny.base import TinyModel

_FILES = {
    file.name: importlib.import_module(f"{__name__}.{file.name}")
    for file in pkgutil.iter_modules(__path__)
    if not file.name.startswith("base")
}
FAMILIES: dict[str, tuple[TinyModel, ...]] = {
    name: file.MODELS for name, file in _FILES.items() if hasattr(file, "MODELS")
}
"""The tiny models of each family, by the name of its file."""
FOLDERS: dict[str, tuple[TinyModel, ...]] = {
    name: file.FOLDERS for name, file in _FILES.items() if hasattr(file, "FOLDERS")
}
"""Those that no GGUF file can be."""

MODELS = tuple(model for models in FAMILIES.values() for model in models)
