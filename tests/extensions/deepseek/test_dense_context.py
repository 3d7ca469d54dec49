"""Contexts of models whose attention is sparse beyond a number of tokens."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny.base import CONTEXT
from models.tiny.deepseek_v32 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.deepseek_v32 import TinyDeepseekV32

SPARSE = [replace(model, top=20) for model in MODELS]
every_model = pytest.mark.parametrize("model", SPARSE, ids=str)


@every_model
def test_the_context_ends_where_attention_leaves_tokens_out(
    model: TinyDeepseekV32, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with HuggingFaceCheckpoint.open(model.write_folder(tmp_path)) as checkpoint:
        assert build(checkpoint).shape.context == 20
        assert f"20 tokens, not the model's {CONTEXT}" in caplog.text
        assert build(checkpoint, 20).shape.context == 20
        with pytest.raises(UnsupportedModelError, match=r"context 21 .*beyond 20 tokens \(index_"):
            build(checkpoint, 21)


@every_model
def test_a_gguf_file_says_it_too(model: TinyDeepseekV32, tmp_path: Path) -> None:
    checkpoint = model.checkpoint(tmp_path)
    assert build(checkpoint).shape.context == 20
    with pytest.raises(UnsupportedModelError, match=r"attention\.indexer\.top_k.*--context 20"):
        build(checkpoint, CONTEXT)


def test_a_context_that_is_dense_as_a_whole_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        HuggingFaceCheckpoint.open(MODELS[0].write_folder(tmp_path)) as checkpoint,
    ):
        assert build(checkpoint, CONTEXT).shape.context == CONTEXT
    assert caplog.text == ""


def test_a_wrong_number_is_named(tmp_path: Path) -> None:
    folder = MODELS[0].write_folder(tmp_path, index_topk=0)
    with (
        HuggingFaceCheckpoint.open(folder) as checkpoint,
        pytest.raises(ModelFileError, match="index_topk must be a positive whole number, got 0"),
    ):
        build(checkpoint)
