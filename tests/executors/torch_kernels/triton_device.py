"""Where the tests of Triton kernels run: on a GPU if there is one, else under Triton's interpreter.

A test module imports this before it imports kernels.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
pytest.importorskip("triton")
