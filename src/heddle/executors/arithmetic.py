"""Which code decides the bits of keys and values: a device's page format names it by a digest.

Not every file: pages on disk outlive an upgrade of the server, the scheduler or the samplers.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

MODEL_SOURCES = (
    "models/*.py",
    "executors/graph/*.py",
    "executors/serving.py",
    "weights/*/*.py",  # readers of files
    "weights/checkpoint.py",
    "weights/files.py",
    "weights/formats.py",
    "weights/quants.py",
    "weights/tensor_types.py",
)
"""From the files of a model to its graph, on every device. A device adds sources of its own.

What these import of the same rooms has to be here too; a test holds that.
"""


def source_digest(*patterns: str, package: Path = Path(__file__).parent.parent) -> str:
    """Stands for the modules of `package` that the patterns name."""
    digest = hashlib.sha256()
    for source in sorted({path for pattern in patterns for path in package.glob(pattern)}):
        digest.update(source.relative_to(package).as_posix().encode())
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


def trigonometry_digest() -> str:
    """Stands for NumPy's cosines and sines, which rope tables are made of.

    Last places differ between its versions and, since it uses what the processor has, machines.
    """
    angles = np.arange(1 << 14) * 0.7
    return hashlib.sha256(np.cos(angles).tobytes() + np.sin(angles).tobytes()).hexdigest()
