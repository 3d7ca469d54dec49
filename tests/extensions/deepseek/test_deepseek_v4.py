"""DeepSeek-V4: what a folder may say, how its weights are stored, where its context ends."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from test_logits import last_logits

from folder_writer import write_raw_safetensors
from heddle.config import EngineConfig
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.reference.model import ReferenceModel
from heddle.extensions.reference.ops import SequenceCache, SequenceChunk
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.quants import E2M1_DOUBLED, e4m3
from heddle.weights.tensor_types import TensorType
from models.tiny.base import TOKENS
from models.tiny.deepseek_v4 import FOLDERS, TinyDeepseekV4

if TYPE_CHECKING:
    from pathlib import Path

MODEL = FOLDERS[0]


def opened(model: TinyDeepseekV4, folder: Path, **changes: object) -> HuggingFaceCheckpoint:
    return HuggingFaceCheckpoint.open(model.write_folder(folder, **changes))


def test_the_context_ends_where_the_indexer_leaves_keys_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With 10 compressed keys of 2 positions, 21 tokens have no eleventh."""
    with caplog.at_level(logging.WARNING), opened(replace(MODEL, top=10), tmp_path) as checkpoint:
        assert build(checkpoint).shape.context == 21
        assert "21 tokens" in caplog.text
        with pytest.raises(UnsupportedModelError, match=r"context 22 .*beyond 21 tokens \(index_"):
            build(checkpoint, 22)


def test_without_an_indexer_the_context_is_the_models(tmp_path: Path) -> None:
    with opened(replace(MODEL, ratios=(0, 128, 128, 0), top=10), tmp_path) as checkpoint:
        assert build(checkpoint).shape.context == MODEL.context


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ({"swiglu_limit": 7.0}, "swiglu_limit 7 is not supported; supported: 10"),
        (
            {"compress_ratios": [0, 4, 8, 4]},
            "compress_ratios .* is not supported; it must have 0, 4",
        ),
        ({"compress_ratios": 4}, "compress_ratios 4 is not supported"),
        ({"head_dim": 48}, "head_dim 48 is not supported: it must be a multiple of 32"),
        ({"o_groups": 4}, "o_groups is 4, which does not divide the 6 heads"),
        ({"compress_rate_hca": 1 << 20}, "compress_ratios must have numbers from 0 to 4096"),
    ],
)
def test_a_value_that_is_not_supported_is_named(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with (
        pytest.raises((UnsupportedModelError, ModelFileError), match=message),
        opened(MODEL, tmp_path, **changes) as checkpoint,
    ):
        build(checkpoint)


@pytest.mark.parametrize("wrong", [7, -1, 0])
def test_a_table_of_experts_must_list_different_ones(tmp_path: Path, wrong: int) -> None:
    """There are experts 0 to 6; of some token the table has 0 already."""
    state = MODEL.state()
    table = state["model.layers.0.ffn.gate.tid2eid"]
    row = next(row for row in table if 0 in row[1:])
    row[0] = wrong

    class Wrong(TinyDeepseekV4):
        def state(self) -> dict[str, np.ndarray]:
            return state

    model = Wrong("wrong", heads=6, kv_heads=1, head_dim=32, tied=False)
    with (
        opened(model, tmp_path) as checkpoint,
        pytest.raises(ModelFileError, match="must list different experts from 0 to 6"),
    ):
        ReferenceModel(checkpoint)


def test_published_folders_store_fp8_and_fp4(tmp_path: Path) -> None:
    """Codes and powers of 2 give the values that they mean."""
    sizes = replace(MODEL, heads=8, expert_width=32, group_rank=32, query_rank=32)
    random = np.random.RandomState(3)
    stored: dict[str, tuple[str, np.ndarray]] = {}
    meant = {}
    for name, values in sizes.state().items():
        label = sizes.folder_name(name)
        if ".experts." in label:
            meant[name] = _float4(stored, label, values.shape, random)
        elif any(part in label for part in (".wq_", ".wo_", "attn.wkv", ".shared_experts.")):
            meant[name] = _float8(stored, label, values.shape, random)
        else:
            kind = "I64" if values.dtype == np.int64 else "F32"
            stored[label], meant[name] = (kind, values), values
    folder = sizes.write_folder(
        tmp_path / "codes",
        quantization_config={"quant_method": "fp8", "weight_block_size": [64, 64]},
    )
    _write(folder / "model.safetensors", stored)

    @dataclass(frozen=True)
    class Meant(TinyDeepseekV4):
        def state(self) -> dict[str, np.ndarray]:
            return meant

    floats = Meant(**{one.name: getattr(sizes, one.name) for one in fields(sizes)})
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        kinds = {name: tensor.type for name, tensor in checkpoint.tensors.items()}
        assert kinds["layers.0.mlp.experts.up.weight"] is TensorType.MXFP4
        assert kinds["layers.0.attention.groups.weight"] is TensorType.F8_E4M3
        logits = ReferenceModel(checkpoint).logits(TOKENS)
        executor = load(checkpoint, EngineConfig(slots=1, threads=2, context=32))
        found = last_logits(executor, TOKENS, [len(TOKENS)])
        executor.close()
    with opened(floats, tmp_path / "floats") as checkpoint:
        assert np.array_equal(ReferenceModel(checkpoint).logits(TOKENS), logits)
    spread = logits[-1].max() - logits[-1].min()
    np.testing.assert_allclose(found[-1], logits[-1], atol=0.1 * spread)


def _float8(
    stored: dict[str, tuple[str, np.ndarray]],
    label: str,
    shape: tuple[int, ...],
    random: np.random.RandomState,
) -> np.ndarray:
    """Store codes of E4M3 with a scale for 64 by 64 of them. Returns the values."""
    codes = random.randint(0x28, 0x40, shape).astype(np.uint8)
    codes |= random.randint(2, size=shape).astype(np.uint8) << 7
    scales = random.randint(122, 126, [-(-size // 64) for size in shape]).astype(np.uint8)
    stored[label] = "F8_E4M3", codes
    stored[label.replace(".weight", ".scale")] = "F8_E8M0", scales
    spread = scales.repeat(64, axis=0).repeat(64, axis=1)[: shape[0], : shape[1]]
    return np.asarray(e4m3(codes) * np.ldexp(np.float32(1), spread.astype(int) - 127))


def _float4(
    stored: dict[str, tuple[str, np.ndarray]],
    label: str,
    shape: tuple[int, ...],
    random: np.random.RandomState,
) -> np.ndarray:
    """Store pairs of codes of E2M1 with a scale for 32 columns. Returns the values."""
    pairs = random.randint(-128, 128, (shape[0], shape[1] // 2)).astype(np.int8)
    scales = random.randint(122, 126, (shape[0], shape[1] // 32)).astype(np.uint8)
    stored[label] = "I8", pairs
    stored[label.replace(".weight", ".scale")] = "F8_E8M0", scales
    unsigned = pairs.view(np.uint8)
    codes = np.stack([unsigned & 15, unsigned >> 4], axis=-1).reshape(shape)
    powers = np.ldexp(np.float32(0.5), scales.repeat(32, axis=1).astype(int) - 127)
    return np.asarray(E2M1_DOUBLED[codes] * powers)


def _write(path: Path, stored: dict[str, tuple[str, np.ndarray]]) -> None:
    header, data = {}, b""
    for label, (kind, values) in stored.items():
        raw = np.ascontiguousarray(values).tobytes()
        place = [len(data), len(data) + len(raw)]
        header[label] = {"dtype": kind, "shape": list(values.shape), "data_offsets": place}
        data += raw
    write_raw_safetensors(path, header, data)


@pytest.mark.parametrize("model", FOLDERS, ids=str)
def test_the_executor_agrees_with_the_reference_in_any_chunks(
    model: TinyDeepseekV4, tmp_path: Path
) -> None:
    tokens = TOKENS * 4
    with opened(model, tmp_path) as checkpoint:
        executor = load(checkpoint, EngineConfig(slots=1, threads=2, context=len(tokens)))
        one_by_one = last_logits(executor, tokens, range(1, len(tokens) + 1))
        expected = ReferenceModel(checkpoint).logits(tokens, "f16")
        np.testing.assert_allclose(one_by_one, expected, atol=6e-3)
        ends = [5, 6, 35, 36, len(tokens)]
        in_chunks = last_logits(executor, tokens, ends)
        assert np.array_equal(in_chunks, one_by_one[[end - 1 for end in ends]])
        executor.close()


def test_chunks_beside_another_sequence_give_the_same_logits(tmp_path: Path) -> None:
    with opened(MODEL, tmp_path) as checkpoint:
        reference = ReferenceModel(checkpoint)
        cache, other = SequenceCache(), SequenceCache()
        parts, start = [], 0
        for turn, count in enumerate((1, 5, 2, 4)):
            own = TOKENS[start : start + count]
            runs = [SequenceChunk(other, turn, [turn]), SequenceChunk(cache, start, own)]
            parts.append(reference.forward(runs)[1:])
            start += count
        np.testing.assert_allclose(np.concatenate(parts), reference.logits(TOKENS), atol=5e-5)
