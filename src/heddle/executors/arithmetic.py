"""Digests of the code that determines the bits of keys and values. A page format contains them.

The digests leave out all other code, so pages on disk stay valid after an upgrade of the server,
the scheduler or the samplers.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heddle.doors import extensions
from heddle.executors.graph.recording import Rope

if TYPE_CHECKING:
    from heddle.executors.graph.forward import Forward

MODEL_SOURCES = (
    "models/*.py",
    "models/families/*.py",
    "executors/graph/*.py",
    "executors/given_states.py",
    "executors/serving.py",
    "weights/*/*.py",  # readers of files
    "weights/checkpoint.py",
    "weights/experts.py",
    "weights/files.py",
    "weights/formats.py",
    "weights/fused.py",
    "weights/generation.py",
    "weights/grids.py",
    "weights/heads.py",
    "weights/hyperparameters.py",
    "weights/pickles.py",
    "weights/quants.py",
    "weights/tensor_names.py",
    "weights/tensor_types.py",
    "weights/tokenizer_kind.py",
)
"""Sources that make a graph from a model's files, on every device. Each device adds its own.

Extensions that build models or read weights are in every digest, too.

The list must include everything that these sources import from the same rooms. A test checks this.
"""


def source_digest(*patterns: str, package: Path = Path(__file__).parent.parent) -> str:
    """Digest of the modules of `package` that match the patterns, and of :func:`door_sources`."""
    digest = hashlib.sha256()
    for content in sorted(source.read_bytes() for source in door_sources()):
        digest.update(hashlib.sha256(content).digest())
    for source in sorted({path for pattern in patterns for path in package.glob(pattern)}):
        digest.update(source.relative_to(package).as_posix().encode())
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


def door_sources() -> set[Path]:
    """The modules of all packages by which extensions build models or read quantised weights."""
    found: set[Path] = set()
    for extension in extensions().values():
        for reference in (*extension.families, *extension.quantisations.values()):
            spec = find_spec(reference.partition(":")[0])
            if spec is not None and spec.origin is not None:
                module = Path(spec.origin)
                found |= set(module.parent.rglob("*.py")) if spec.parent else {module}
    return found


def rope_digest(forward: Forward) -> str:
    """Digest of how the graph rotates keys, which may depend on the served context."""
    specs = [node.spec for node in forward.nodes if isinstance(node, Rope)]
    return hashlib.sha256(repr(specs).encode()).hexdigest()


def trigonometry_digest() -> str:
    """Digest of NumPy's cosines and sines, which determine the rope tables.

    Their last bits differ between NumPy versions, and between machines, because NumPy chooses
    instructions by processor.
    """
    angles = np.arange(1 << 14) * 0.7
    return hashlib.sha256(np.cos(angles).tobytes() + np.sin(angles).tobytes()).hexdigest()
