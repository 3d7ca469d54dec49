"""The families of the core's blocks: each is listed, and brings no block of its own."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest

from heddle.extensions import decoders

if TYPE_CHECKING:
    from types import ModuleType

MODULES = [
    importlib.import_module(f"{decoders.__name__}.{file.name}")
    for file in pkgutil.iter_modules(decoders.__path__)
]
FAMILIES = [module for module in MODULES if hasattr(module, "FAMILY")]


def test_each_family_is_listed() -> None:
    assert sorted(decoders.EXTENSION.families) == [f"{one.__name__}:FAMILY" for one in FAMILIES]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split(".")[-1])
def test_a_family_has_no_block_of_its_own(module: ModuleType) -> None:
    blocks = [value for value in vars(module).values() if hasattr(value, "forward")]
    assert [one for one in blocks if one.__module__ == module.__name__] == []
