"""Refuses operations of torch for which the host would wait for a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_READS = frozenset(
    {
        *("item", "tolist", "numpy", "cpu", "equal", "allclose", "is_nonzero"),
        *("__bool__", "__int__", "__float__", "__index__", "__contains__"),
    }
)
_SIZES = frozenset(
    {
        *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"),
        *("repeat_interleave", "bincount", "combinations"),
    }
)
"""The size of the result follows from values."""

_COPIES = frozenset({"tensor", "as_tensor"})
"""Numbers of the host that are not pinned."""


class NoWaits(TorchFunctionMode):
    """Inside, reading a value, a size that follows from values, and unpinned numbers are errors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        assert name not in _READS | _SIZES | _COPIES, f"{name} waits for the device"
        assert name != "where" or len(args) > 1, "where with one argument is nonzero"
        if name in ("__getitem__", "__setitem__", "index_put", "index_put_"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(one, list) for one in index), "an index is copied"
            assert not any(map(_is_boolean, index)), "a boolean index is nonzero"
        return func(*args, **(kwargs or {}))


def _is_boolean(index: object) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool
