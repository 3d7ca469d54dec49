"""Pictures with Triton kernels: near those of torch, and exact beside texts."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from triton_device import DEVICE, torch

from test_triton_executor import CONFIG, Apart  # isort: skip

from heddle.executors.devices import loader
from heddle.extensions.vision.kinds import kind_of
from heddle.pictures import Pictures
from heddle.step import Chunk
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.mix import AS_STORED, Mix

from seen import distance, eyes_in, look_at  # isort: skip
from sight_steps import pages, pictures_of, scored, values  # isort: skip
from tiny_eyes import GEMMA3, QWEN2_VL, QWEN3_VL  # isort: skip
from tiny_eyes_base import BEFORE  # isort: skip

from heddle.extensions.torch import program  # isort: skip
from heddle.extensions.torch import encoder as torch_encoder  # isort: skip
from heddle.extensions.torch.ops import TorchOps  # isort: skip
from heddle.extensions.torch.triton_ops import TritonOps  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_eyes_base import TinyEyes


@pytest.mark.parametrize("model", [GEMMA3, QWEN3_VL], ids=str)
def test_prompts_with_pictures_are_near_those_of_torch_and_exact(
    tmp_path: Path, model: TinyEyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With runs in one model, and with axes and rows for first layers in the other."""
    tokens = model.prompt()
    checkpoint = HuggingFaceCheckpoint.open(model.write_folder(tmp_path))
    has_axes = checkpoint.hyperparameters.get("rope.sections") is not None
    seen = pictures_of(model, model.expected()["rows"], has_axes=has_axes)
    found = {}
    for ops in (TorchOps, Apart, TritonOps):
        monkeypatch.setattr(program, "operations", lambda device, ops=ops: ops)
        executor = loader(CONFIG.device)(checkpoint, replace(CONFIG))
        found[ops] = scored(executor, tokens, seen)
    np.testing.assert_allclose(values(found[TritonOps]), values(found[TorchOps]), atol=2e-2)
    alone = found[TritonOps]
    assert found[Apart] == alone, "joined operations change no bit"
    blind = scored(executor, tokens, Pictures(()))
    assert blind[: BEFORE - 1] == alone[: BEFORE - 1], "a prefix has the bits of one without"
    assert scored(executor, tokens, seen, [BEFORE]) == alone
    sight = seen.sight(0, len(tokens))
    beside = Chunk(0, 0, tokens, sample=False, sight=sight, **pages(executor, 0))
    assert scored(executor, tokens, Pictures(()), company=[beside]) == blind


def test_eyes_are_near_those_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (program, torch_encoder):
        monkeypatch.setattr(module, "operations", lambda device: TritonOps)
    with eyes_in(tmp_path, QWEN2_VL) as eyes:
        kind = kind_of(eyes)
        look = look_at(kind, QWEN2_VL.each_tile())
        mix = Mix.named(AS_STORED)
        encoder = torch_encoder.TorchEncoder(kind.tower, eyes, torch.device(DEVICE), mix, 256)
        while look.rows is None:
            encoder.advance([look], 60)
        assert distance(look.rows, QWEN2_VL.expected()["rows"]) < 3e-3
