"""BitNet: what its GGUF files may hold beside what all files hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gguf_writer import Tensor
from heddle.errors import UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from models.tiny.base import TOKENS
from models.tiny.bitnet import MODELS

if TYPE_CHECKING:
    from pathlib import Path


def test_a_scale_beside_its_matrix_is_refused(tmp_path: Path) -> None:
    scale = Tensor.of("blk.0.attn_q.scale", np.ones(1, np.float32))
    with pytest.raises(UnsupportedModelError, match=r"attention\.q\.scale is not supported"):
        ReferenceModel(MODELS[0].checkpoint(tmp_path, extra=[scale]))


def test_llama_cpps_architecture_may_name_the_activation(tmp_path: Path) -> None:
    """Without the key it is SiLU. Others than these two are refused."""
    old = MODELS[1]
    named = {"bitnet.hidden_activation": "relu2"}
    found = ReferenceModel(old.checkpoint(tmp_path, named)).logits(TOKENS)
    assert not np.allclose(found, old.expected_logits(), atol=1e-2)
    with pytest.raises(UnsupportedModelError, match="'gelu' is not supported"):
        build(old.checkpoint(tmp_path, {"bitnet.hidden_activation": "gelu"}))
