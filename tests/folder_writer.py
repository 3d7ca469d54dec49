"""Writes the files of a Hugging Face folder, by the books: no code of Heddle's is used."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], dtype: str = "F32") -> Path:
    """Write float32 tensors, stored as `dtype`: F32, F16 or BF16 (rounded towards zero).

    Those of int64 are stored as they are.
    """
    stored = {name: _encode(values, dtype) for name, values in tensors.items()}
    header, position = {}, 0
    for name, raw in stored.items():
        end = position + len(raw)
        shape = list(tensors[name].shape)
        kind = "I64" if tensors[name].dtype == np.int64 else dtype
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [position, end]}
        position = end
    return write_raw_safetensors(path, header, b"".join(stored.values()))


def write_raw_safetensors(path: Path, header: object, data: bytes) -> Path:
    """Write a header, right or wrong, and what follows it."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def _encode(values: np.ndarray, dtype: str) -> bytes:
    if values.dtype == np.int64:
        return values.astype("<i8").tobytes()
    exact = np.ascontiguousarray(values, np.float32)
    if dtype == "BF16":
        return (exact.view(np.uint32) >> 16).astype("<u2").tobytes()
    return exact.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_tokenizer(path: Path, vocabulary: int) -> Path:
    """Write a byte-level tokenizer.json of so many tokens; the last one is <|endoftext|>."""
    pieces = {chr(ord("A") + id): id for id in range(vocabulary - 1)}
    end = {"id": vocabulary - 1, "content": "<|endoftext|>", "special": True}
    pipeline = {
        "added_tokens": [end],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "model": {"type": "BPE", "vocab": pieces, "merges": []},
    }
    path.write_text(json.dumps(pipeline))
    return path
