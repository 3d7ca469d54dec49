"""Adapters of random changes, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.weights.low_rank import LowRank
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from heddle.executors.cpu.executor import CpuExecutor


def random_changes(
    executor: CpuExecutor, seed: int, rank: int = 4, kind: TensorType = TensorType.F32
) -> dict[str, LowRank]:
    """Changes of all matrices, large enough to be seen in the logits."""
    stream = np.random.RandomState(seed)

    def matrix(rows: int, columns: int) -> Any:
        return (stream.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    return {
        name: LowRank(matrix(rank, one.in_features), matrix(one.out_features, rank), 0.5, kind)
        for name, one in executor.adaptable().items()
    }
