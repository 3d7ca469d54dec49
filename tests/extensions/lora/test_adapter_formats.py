"""Rows of adapters of one format for models of the other, in all families.

An adapter whose A is the identity and whose B is a matrix of the model's file in one format must
become the matrix of the model's file in the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gguf_writer import Tensor
from heddle.errors import UnsupportedModelError
from heddle.extensions.lora.reading import read_adapter
from heddle.weights.formats import open_checkpoint
from heddle.weights.tensor_types import dequantize
from lora_writer import peft_tensors, write_gguf_adapter, write_peft
from models.tiny import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.weights.checkpoint import Checkpoint
    from models.tiny.base import TinyModel

PARTS = (
    *("attention.q", "attention.k", "attention.v", "attention.output"),
    *("mlp.gate", "mlp.up", "mlp.down", "mlp.shared.gate", "mlp.shared.up", "mlp.shared.down"),
)
LATENT = (
    *("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2"),
    *("kimi_linear", "minicpm3", "mistral4"),
)
REFUSED = {
    "hf": (*LATENT, "falcon_h1", "gpt2", "gpt_neox", "bloom", "falcon", "internlm2"),
    "gguf": (*LATENT, "falcon_h1", "glm4v_text", "internlm3"),
}
"""Architectures that take adapters of their own format only, by the format of the adapter."""


def labels_of(checkpoint: Checkpoint) -> list[str]:
    """The stored matrices that hold parts which an adapter may change, without experts."""
    found = {
        tensor.label: None
        for name, tensor in checkpoint.tensors.items()
        if name.removesuffix(".weight").partition(".")[2].partition(".")[2] in PARTS
    }
    return list(found)


def stored(checkpoint: Checkpoint, label: str) -> np.ndarray:
    parts = [name for name, one in checkpoint.tensors.items() if one.label == label]
    return np.concatenate([values_of(checkpoint, name) for name in parts])


def values_of(checkpoint: Checkpoint, name: str) -> np.ndarray:
    tensor = checkpoint.tensors[name]
    return dequantize(checkpoint.read(name), tensor.type, tensor.shape)


def write_adapter(model: TinyModel, checkpoint: Checkpoint, place: Path) -> Path:
    """An adapter in the format of a checkpoint, with the checkpoint's own matrices as changes."""
    matrices = {
        label.removesuffix(".weight"): stored(checkpoint, label) for label in labels_of(checkpoint)
    }
    changes = {
        name: (np.eye(one.shape[1], dtype=np.float32), one) for name, one in matrices.items()
    }
    if checkpoint.format == "hf":
        ranks = {name: one.shape[1] for name, one in matrices.items()}
        config = {"rank_pattern": ranks, "alpha_pattern": ranks}
        return write_peft(place, peft_tensors(changes), **config)
    tensors = [
        Tensor.of(f"{name}.weight.lora_{side}", values)
        for name, both in changes.items()
        for side, values in zip("ab", both, strict=True)
    ]
    return write_gguf_adapter(place, model, tensors, adapter__lora__alpha=0.0)


@pytest.mark.parametrize("format", ["hf", "gguf"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_models_matrices_become_those_of_its_other_format(
    model: TinyModel, format: str, tmp_path: Path
) -> None:
    with (
        open_checkpoint(model.write_folder(tmp_path / "folder")) as folder,
        open_checkpoint(model.write(tmp_path / "file.gguf")) as file,
    ):
        source, base = (folder, file) if format == "hf" else (file, folder)
        if not labels_of(source):
            return
        adapter = write_adapter(model, source, tmp_path / "adapter")
        if folder.architecture in REFUSED[format]:
            with pytest.raises(UnsupportedModelError):
                read_adapter(adapter, base)
            return
        changes = read_adapter(adapter, base).changes
        assert changes
        for name, change in changes.items():
            assert change.scale == 1
            np.testing.assert_array_equal(change.b, values_of(base, f"{name}.weight"), name)
