"""Adapters that PEFT itself writes: the changed matrices are those that PEFT merges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from heddle.extensions.lora.reading import read_adapter
from heddle.weights.formats import open_checkpoint
from heddle.weights.tensor_types import dequantize
from lora_writer import modules_of
from models.tiny import llama

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

MODEL = llama.MODELS[1]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 16, "target_modules": [*ATTENTION, "up_proj", "lm_head"]},
    "rslora": {"r": 8, "lora_alpha": 3, "use_rslora": True, "target_modules": "all-linear"},
    "expression": {"r": 2, "target_modules": r".*\.1\.mlp\.(gate|down)_proj"},
    "layers": {"r": 2, "target_modules": ATTENTION, "layers_to_transform": [1]},
    "excluded": {"r": 2, "target_modules": ATTENTION, "exclude_modules": ["v_proj"]},
    "patterns": {
        "r": 4,
        "lora_alpha": 7,
        "target_modules": "all-linear",
        "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.(up|down)_proj": 6},
        "alpha_pattern": {"^model.layers.0.self_attn.k_proj": 5, ".*down_proj": 9},
    },
    "root patterns": {
        "target_modules": ["q_proj", "down_proj"],
        "use_rslora": True,
        "rank_pattern": {"q_proj": 3},
        "alpha_pattern": {"model.layers.1.mlp.down_proj": 20},
    },
    "gaussian": {"r": 4, "target_modules": ["k_proj"], "init_lora_weights": "gaussian"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", CONFIGS)
def test_merged_matrices_are_those_of_peft(
    config: str, dtype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = MODEL.write_folder(tmp_path / "base")
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **CONFIGS[config]))
    torch.manual_seed(1)
    for name, values in model.named_parameters():
        if "lora_" in name:
            values.data = torch.randn_like(values).to(getattr(torch, dtype)).float()
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    merged = model.merge_and_unload().state_dict()
    state = MODEL.state()
    for place in (folder, MODEL.write(tmp_path / "base.gguf")):
        with open_checkpoint(place) as base, open_checkpoint(folder) as names:
            changes = dict(read_adapter(tmp_path / "adapter", base).changes)
            for module in modules_of(MODEL):
                name = next(one for one in base.tensors if names.label(one) == f"{module}.weight")
                tensor, wanted = base.tensors[name], merged[f"{module}.weight"].numpy()
                has_changed = np.abs(wanted - state[f"{module}.weight"]).max() > 0
                change = changes.pop(name.removesuffix(".weight"), None)
                assert has_changed == (change is not None), name
                result = dequantize(base.read(name), tensor.type, tensor.shape)
                if change is not None:
                    result = result + np.float32(change.scale) * (change.b @ change.a)
                if base.format == "gguf":
                    wanted = MODEL.gguf_values(f"{module}.weight", wanted)
                largest = max(1.0, np.abs(wanted).max())
                np.testing.assert_allclose(result / largest, wanted / largest, atol=1e-6)
            assert not changes
    assert "unknown fields" not in caplog.text
