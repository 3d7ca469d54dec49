"""Nothing is ever unpickled or run as code: a model file may be hostile, and so may a child."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "heddle"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "code"}
"""Modules that turn bytes into objects or into code."""

CALLS = {
    *{"eval", "exec", "__import__", "read_pickle", "unsafe_load", "full_load"},
    *{"numpy.load", "np.load", "torch.load", "yaml.load"},
}
"""Functions that may do so, by their name or by module and name."""


def dangers(source: str) -> list[str]:
    """The places of a module that may unpickle a file or run it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
            found += [name for name in names if name in MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module] if node.module in MODULES else []
        elif isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "trust_remote_code"}:
            found.append(node.arg)
        elif isinstance(node, ast.Call):
            whole = ast.unparse(node.func)
            found += [whole] if {whole, whole.rpartition(".")[2]} & CALLS else []
    return found


def test_no_module_unpickles() -> None:
    assert len(SOURCES) > 200
    found = {str(path.relative_to(PACKAGE)): dangers(path.read_text()) for path in SOURCES}
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, pickle as p",
        "from pickle import loads",
        "import numpy as np\nnp.load('x')",
        "import numpy\nnumpy.load('x', allow_pickle=True)",
        "def f():\n    import torch\n    return torch.load('x')",
        "frame.read_pickle('x')",
        "eval('1')",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert dangers(source)


def test_the_search_takes_no_offence_at_other_loads() -> None:
    assert dangers("import json\njson.load(file)\nre.compile('x')\nself._load(path)") == []
