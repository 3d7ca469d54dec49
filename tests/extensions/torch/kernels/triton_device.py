"""Where the tests of Triton kernels run: on a GPU if there is one, else under Triton's interpreter.

A test module imports this before it imports kernels.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
pytest.importorskip("triton")


def _patch_language_once() -> None:
    """Make the interpreter several times faster.

    It puts its own functions into the module of the language at each launch, and at each call of a
    function of a kernel. Once is enough, as all kernels of this process are interpreted.
    """
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    language: Any = importlib.import_module("triton.language")
    names = {"tl": language, "core": language.core}
    interpreter._patch_lang(SimpleNamespace(__globals__=names))
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()


def _multiply_all_elements_alike() -> None:
    """Give each element of a product the same arithmetic whatever the product's sizes.

    Tensor cores do: they add products in ascending order of K. NumPy's matmul is a BLAS, which may
    compute the last bits of an element by its place, and its `einsum` by sizes.
    """
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")

    def create_dot(builder: Any, a: Any, b: Any, acc: Any, *precision: Any) -> Any:
        total = acc.data.copy()
        left, right = a.data.astype(total.dtype), b.data.astype(total.dtype)
        for k in range(left.shape[-1]):
            total += left[..., :, k, None] * right[..., k, None, :]
        return interpreter.TensorHandle(total, acc.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


def _overflow_without_warnings() -> None:
    """Let kernels compute what nothing reads, such as rows without a token, as a GPU does."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    run = interpreter.GridExecutor.__call__

    def quiet(*arguments: Any, **more: Any) -> None:
        with np.errstate(all="ignore"):
            run(*arguments, **more)

    interpreter.GridExecutor.__call__ = quiet


def run_without_interpreter(program: str, cache: Path, *arguments: str) -> str:
    """Run a program of this folder, which compiles kernels. It needs no GPU. Returns its output."""
    found = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment = found | {"TRITON_CACHE_DIR": str(cache)}
    path = Path(__file__).parent / program
    command = [sys.executable, path, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


if DEVICE.type == "cpu":
    _patch_language_once()
    _multiply_all_elements_alike()
    _overflow_without_warnings()
