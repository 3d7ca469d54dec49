"""Writes adapters for tiny models, by the books: no code of Heddle's is used."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING

import numpy as np

from folder_writer import write_safetensors
from gguf_writer import Tensor, write_gguf

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from models.tiny.base import TinyModel

Changes = dict[str, tuple[np.ndarray, np.ndarray]]
"""a (rank, columns) and b (rows, rank), by the module's name in `transformers`."""

RANK, ALPHA = 4, 8.0
SCALE = ALPHA / RANK


def modules_of(model: TinyModel) -> dict[str, tuple[int, ...]]:
    """The shapes of the matrices of a model that an adapter may change, by module."""
    return {
        name.removesuffix(".weight"): values.shape
        for name, values in model.state().items()
        if values.ndim == 2 and "embed" not in name
    }


def changes_of(
    model: TinyModel, rank: int = RANK, seed: int = 5, modules: Iterable[str] | None = None
) -> Changes:
    """Random changes of all matrices, or of those of some modules. BF16 holds them exactly."""
    random = np.random.default_rng(seed)
    shapes = modules_of(model)

    def side(rows: int, columns: int) -> np.ndarray:
        return random.integers(-100, 101, (rows, columns)).astype(np.float32) / 512

    return {
        module: (side(rank, shapes[module][1]), side(shapes[module][0], rank))
        for module in (shapes if modules is None else modules)
    }


def known_in_all(model: TinyModel) -> Changes:
    """Changes of the matrices that an adapter of another format may change: not of routers."""
    routers = (".mlp.gate", "block_sparse_moe.gate")
    return changes_of(
        model, modules=[one for one in modules_of(model) if not one.endswith(routers)]
    )


def peft_tensors(changes: Changes, prefix: str = "base_model.model.") -> dict[str, np.ndarray]:
    """Tensors under PEFT's names."""
    found = {}
    for module, (a, b) in changes.items():
        found[f"{prefix}{module}.lora_A.weight"] = a
        found[f"{prefix}{module}.lora_B.weight"] = b
    return found


def peft_config(**changes: object) -> dict[str, object]:
    """The content of adapter_config.json."""
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": "",
        "r": RANK,
        "lora_alpha": ALPHA,
        "bias": "none",
        "target_modules": ["q_proj"],
        "init_lora_weights": True,
    } | changes


def write_peft(
    folder: Path, tensors: Mapping[str, np.ndarray], dtype: str = "F32", **config: object
) -> Path:
    """Write an adapter as PEFT does; `config` changes its adapter_config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(**config)))
    write_safetensors(folder / "adapter_model.safetensors", tensors, dtype)
    return folder


def gguf_tensors(model: TinyModel, changes: Changes) -> list[Tensor]:
    """Tensors under llama.cpp's names, rows in its order; experts of a layer are stacked."""
    found: dict[str, list[np.ndarray]] = {}
    for module, (a, b) in changes.items():
        stack = stack_of(module)
        name = model.gguf_name(f"{stack}.weight")
        for side, values in (("a", a), ("b", model.gguf_values(f"{stack}.weight", b))):
            found.setdefault(f"{name}.lora_{side}", []).append(values)
    return [
        Tensor.of(name, np.stack(one) if "_exps." in name else one[0])
        for name, one in found.items()
    ]


def gguf_metadata(model: TinyModel, **changes: object) -> dict[str, object]:
    """Metadata of an adapter; `changes` have `__` for a point, and None drops a key."""
    metadata: dict[str, object] = {
        "general.type": "adapter",
        "general.architecture": model.gguf_architecture or model.architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": ALPHA,
    }
    metadata |= {name.replace("__", "."): value for name, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def write_gguf_adapter(
    path: Path, model: TinyModel, tensors: Iterable[Tensor], **changes: object
) -> Path:
    """Write an adapter as llama.cpp's converter does."""
    return write_gguf(path, gguf_metadata(model, **changes), tensors)


def merged(model: TinyModel, changes: Changes, scale: float = SCALE) -> TinyModel:
    """The model with changed matrices."""
    state = model.state()
    for module, (a, b) in changes.items():
        state[f"{module}.weight"] = state[f"{module}.weight"] + np.float32(scale) * (b @ a)
    stacks: dict[str, list[np.ndarray]] = {}
    for name, values in state.items():
        stacks.setdefault(stack_of(name), []).append(values)
    stacked = {name: np.stack(one) if "*" in name else one[0] for name, one in stacks.items()}
    new = copy.copy(model)
    object.__setattr__(new, "state", lambda: dict(state))
    object.__setattr__(new, "stacked_state", lambda: dict(stacked))
    return new


def stack_of(name: str) -> str:
    """A name with `*` in the place of the number of an expert."""
    return re.sub(r"\.experts\.\d+\.", ".experts.*.", name)
