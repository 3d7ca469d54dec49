"""Models with merged adapters, as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gguf_writer import Tensor, write_gguf
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.lora.command import merge
from heddle.extensions.lora.merging import merge_files
from heddle.weights.formats import open_checkpoint
from heddle.weights.tensor_types import TensorType, dequantize
from lora_writer import (
    SCALE,
    changes_of,
    known_in_all,
    merged,
    modules_of,
    peft_tensors,
    write_peft,
)
from models.tiny import llama, phi3, qwen3_moe
from tiny_hub import TOKENIZER

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.base import TinyModel

PLAIN, UNTIED = llama.MODELS[:2]


def write_model(model: TinyModel, format: str, folder: Path, dtype: str = "F32") -> Path:
    if format == "hf":
        return model.write_folder(folder / "base", dtype)
    kind = TensorType[dtype]
    return write_gguf(
        folder / "base.gguf",
        model.metadata() | TOKENIZER,
        [_as_type(tensor, kind) for tensor in model.tensors()],
    )


def _as_type(tensor: Tensor, kind: TensorType) -> Tensor:
    if kind is TensorType.F32 or len(tensor.shape) < 2:
        return tensor
    values = np.frombuffer(tensor.data, np.float32)
    if kind is TensorType.F16:
        data = values.astype(np.float16).tobytes()
    else:
        data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return Tensor(tensor.name, data, tensor.shape, kind)


@pytest.mark.parametrize("format", ["hf", "gguf"])
@pytest.mark.parametrize("model", [UNTIED, phi3.MODELS[1], qwen3_moe.MODELS[1]], ids=str)
def test_a_merged_file_is_the_file_of_the_merged_model(
    model: TinyModel, format: str, tmp_path: Path
) -> None:
    changes = known_in_all(model)
    adapter = write_peft(tmp_path / "adapter", peft_tensors(changes))
    written = merge_files(write_model(model, format, tmp_path), adapter, tmp_path / "new.gguf")
    with (
        open_checkpoint(written.path) as found,
        open_checkpoint(merged(model, changes).write(tmp_path / "wanted.gguf")) as wanted,
    ):
        for name, tensor in wanted.tensors.items():
            if name.startswith("rope"):
                continue
            assert found.tensors[name].type is TensorType.F32
            one, other = (each.read(name).view(np.float32) for each in (found, wanted))
            np.testing.assert_allclose(one, other, atol=1e-6, err_msg=tensor.label)


def test_lengths_of_rows_are_merged(tmp_path: Path) -> None:
    module, name = "model.layers.0.mlp.up_proj", "layers.0.mlp.up.weight"
    tensors = peft_tensors(changes_of(UNTIED, modules=[module]))
    wanted = np.linspace(1, 2, UNTIED.ffn_width, dtype=np.float32)
    tensors[f"base_model.model.{module}.lora_magnitude_vector"] = wanted
    adapter = write_peft(tmp_path / "adapter", tensors, use_dora=True)
    written = merge_files(write_model(UNTIED, "hf", tmp_path), adapter, tmp_path / "new.gguf")
    with open_checkpoint(written.path) as found:
        rows = found.read(name).view(np.float32).reshape(found.tensors[name].shape)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), wanted, atol=1e-5)


def test_changes_of_look_ups_are_not_merged(tmp_path: Path) -> None:
    tensors = {"base_model.model.lm_head.weight": np.ones((32, 32), np.float32)}
    tensors |= peft_tensors(changes_of(UNTIED, modules=["model.layers.0.mlp.up_proj"]))
    adapter = write_peft(tmp_path / "adapter", tensors)
    with pytest.raises(UnsupportedModelError, match=r"changes lm_head\.weight as a whole"):
        merge_files(write_model(UNTIED, "hf", tmp_path), adapter, tmp_path / "new.gguf")


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("format", ["hf", "gguf"])
def test_matrices_keep_their_type(format: str, dtype: str, tmp_path: Path) -> None:
    """Each merged value is the nearest of the type, and matrices that do not change stay."""
    module = "model.layers.0.mlp.up_proj"
    changes = changes_of(UNTIED, modules=[module])
    base = write_model(UNTIED, format, tmp_path, dtype)
    adapter = write_peft(tmp_path / "adapter", peft_tensors(changes))
    merge_files(base, adapter, tmp_path / "new.gguf")
    name, (a, b) = "layers.0.mlp.up.weight", changes[module]
    with open_checkpoint(base) as old, open_checkpoint(tmp_path / "new.gguf") as new:
        shape, kind = old.tensors[name].shape, TensorType[dtype]
        exact = dequantize(old.read(name), kind, shape) + np.float32(SCALE) * (b @ a)
        assert new.tensors[name].type is kind
        found = dequantize(new.read(name), kind, shape)
        bits = 2.0 ** (-11 if dtype == "F16" else -8)
        assert (np.abs(found - exact) <= np.abs(exact) * bits + 1e-7).all()
        same = "layers.0.mlp.down.weight"
        np.testing.assert_array_equal(old.read(same), new.read(same))


def test_a_quantised_matrix_is_refused(tmp_path: Path) -> None:
    tensors = [
        Tensor.random(one.name, TensorType.Q8_0, one.shape, 1) if "ffn_up" in one.name else one
        for one in UNTIED.tensors()
    ]
    base = write_gguf(tmp_path / "base.gguf", UNTIED.metadata() | TOKENIZER, tensors)
    adapter = write_peft(tmp_path / "adapter", peft_tensors(changes_of(UNTIED)))
    with pytest.raises(UnsupportedModelError, match=r"is quantised as Q8_0.*quantize") as caught:
        merge_files(base, adapter, tmp_path / "new.gguf")
    assert caught.value.param == "blk.0.ffn_up.weight"
    some = [module for module in modules_of(UNTIED) if "up_proj" not in module]
    write_peft(tmp_path / "adapter", peft_tensors(changes_of(UNTIED, modules=some)))
    merge_files(base, adapter, tmp_path / "new.gguf")


def test_an_embedding_that_is_the_output_matrix_is_refused(tmp_path: Path) -> None:
    a, b = np.ones((4, PLAIN.width), np.float32), np.ones((PLAIN.vocabulary, 4), np.float32)
    adapter = write_peft(tmp_path / "adapter", peft_tensors({"lm_head": (a, b)}))
    with pytest.raises(UnsupportedModelError, match="has it as its embedding") as caught:
        merge_files(write_model(PLAIN, "gguf", tmp_path), adapter, tmp_path / "new.gguf")
    assert caught.value.param == "output.weight"


def test_values_that_the_type_does_not_hold_are_refused(tmp_path: Path) -> None:
    changes = changes_of(UNTIED, modules=["model.layers.0.mlp.up_proj"])
    adapter = write_peft(tmp_path / "adapter", peft_tensors(changes), lora_alpha=1e8)
    base = write_model(UNTIED, "gguf", tmp_path, "F16")
    with pytest.raises(ModelFileError, match="that F16 does not hold") as caught:
        merge_files(base, adapter, tmp_path / "new.gguf")
    assert caught.value.field == "blk.0.ffn_up.weight"
    assert not (tmp_path / "new.gguf").exists()


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = write_peft(tmp_path / "adapter", peft_tensors(changes_of(UNTIED)))
    base, new = write_model(UNTIED, "hf", tmp_path), tmp_path / "new.gguf"
    merge(str(base), str(adapter), new)
    assert capsys.readouterr().out.startswith(f"{new}  0 MB")
