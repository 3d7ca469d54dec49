"""Logits with adapters that PEFT writes are those that PEFT computes, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from adapters import logits_of
from models.tiny import llama, mixtral, qwen3_moe
from models.tiny.base import TOKENS

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.base import TinyModel

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

TIED, UNTIED = llama.MODELS[:2]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES: dict[str, tuple[TinyModel, dict[str, Any]]] = {
    "plain": (UNTIED, {"target_modules": "all-linear"}),
    "dora": (UNTIED, {"target_modules": "all-linear", "use_dora": True}),
    "dora of the head": (
        UNTIED,
        {"target_modules": ["lm_head", "down_proj"], "use_dora": True, "use_rslora": True},
    ),
    "embedding": (UNTIED, {"target_modules": ["embed_tokens", "q_proj"]}),
    "embedding of both": (TIED, {"target_modules": ["embed_tokens", "q_proj"]}),
    "saved": (UNTIED, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "saved both": (
        UNTIED,
        {"target_modules": ["up_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    ),
    "experts": (qwen3_moe.MODELS[0], {"target_modules": [], "target_parameters": EXPERTS}),
    "down alone": (
        mixtral.MODELS[0],
        {"target_modules": ["q_proj"], "target_parameters": EXPERTS[1:]},
    ),
}


def trained(case: str, folder: Path) -> Any:
    """PEFT's model with random changes. Its base is in `folder`."""
    base, config = CASES[case]
    model = transformers.AutoModelForCausalLM.from_pretrained(base.write_folder(folder))
    config = {"r": 4, "lora_alpha": 8, **config}
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config))
    torch.manual_seed(1)
    for name, values in model.named_parameters():
        if "lora_magnitude" in name:
            values.data = values.data * (0.5 + torch.rand_like(values))
        elif "lora_" in name:
            values.data = 0.3 * torch.randn_like(values)
        elif "modules_to_save" in name:
            values.data = values.data + 0.1 * torch.randn_like(values)
    return model.eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft(case: str, tmp_path: Path) -> None:
    model = trained(case, tmp_path / "base")
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers="auto")
    with torch.no_grad():
        wanted = model(torch.tensor([TOKENS])).logits[0].numpy()
        with model.disable_adapter():
            plain = model(torch.tensor([TOKENS])).logits[0].numpy()
    assert np.abs(wanted - plain).max() > 0.05
    for adapter, expected in ((tmp_path / "adapter", wanted), (None, plain)):
        exact, native = logits_of(tmp_path / "base", adapter, TOKENS)
        np.testing.assert_allclose(exact, expected, atol=1e-4)
        np.testing.assert_allclose(native, expected[-1], atol=2e-2)  # keys and values are F16
