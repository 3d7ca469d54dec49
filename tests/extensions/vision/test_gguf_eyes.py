"""Eyes of GGUF files under canonical names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_eyes import MODELS
from tiny_mmproj import KINDS, write_mmproj

from heddle.extensions.vision.files import eyes_of
from heddle.extensions.vision.gguf_eyes import gguf_eyes
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import dequantize

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

    from heddle.extensions.vision.eyes import EyesCheckpoint

BOTH = [model for model in MODELS if model.name in KINDS]


def values(eyes: EyesCheckpoint) -> dict[str, np.ndarray]:
    return {
        name: dequantize(eyes.read(name), info.type, info.shape)
        for name, info in eyes.tensors.items()
    }


@pytest.mark.parametrize("model", BOTH, ids=str)
def test_both_formats_have_the_same_eyes(tmp_path: Path, model: TinyEyes) -> None:
    text = model.text.write(tmp_path / "text.gguf")
    mmproj = write_mmproj(tmp_path / "mmproj-F32.gguf", model)
    with (
        HuggingFaceCheckpoint.open(model.write_folder(tmp_path / "folder")) as folder,
        GGUFCheckpoint.open(text) as checkpoint,
        gguf_eyes(mmproj, checkpoint) as eyes,
    ):
        expected = eyes_of(folder)
        assert expected is not None
        assert eyes.architecture == expected.architecture
        found, wanted = values(eyes), values(expected)
        assert found.keys() - {"output_norm.weight", "output_norm.bias.weight"} == (
            wanted.keys() - {"output_norm.weight", "output_norm.bias.weight"}
        )
        for name, one in wanted.items():
            np.testing.assert_allclose(found[name], one, rtol=1e-6, err_msg=name)
        for name in ("layers", "width", "mlp_width", "heads", "patch", "merge", "text_width"):
            assert eyes.hyperparameters.get(name) == expected.hyperparameters.get(name), name
        more = ("activation", "projection_activation", "window", "full_layers", "rope.base")
        for name in (*more, "deepstack_layers", "feature_layers", "positions_side"):
            assert eyes.hyperparameters.get(name) == expected.hyperparameters.get(name), name
        eps = [one.hyperparameters.number("norm_eps") for one in (eyes, expected)]
        assert eps[0] == pytest.approx(eps[1])
        eyes.check_unchanged()
