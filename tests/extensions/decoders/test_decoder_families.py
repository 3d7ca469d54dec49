"""The families of the core's blocks: each file is listed, and brings no block of its own."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from heddle.extensions import decoders
from heddle.models.family import Family

FILES = [file.name for file in pkgutil.iter_modules(decoders.__path__)]


def test_each_file_is_listed() -> None:
    references = [f"{decoders.__name__}.{file}:FAMILY" for file in FILES]
    assert sorted(decoders.EXTENSION.families) == sorted(references)


@pytest.mark.parametrize("file", FILES)
def test_a_family_has_no_block_of_its_own(file: str) -> None:
    module = importlib.import_module(f"{decoders.__name__}.{file}")
    own = [name for name, value in vars(module).items() if hasattr(value, "forward")]
    assert isinstance(module.FAMILY, Family)
    assert [name for name in own if vars(module)[name].__module__ == module.__name__] == []
