"""The description of a model file, as data, JSON and tables."""

from __future__ import annotations

import io
import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console

from gguf_writer import Tensor, write_gguf
from heddle import _native
from heddle.cli.description_tables import print_description
from heddle.state import PAGE_TOKENS
from heddle.weights.inspect import Experts, MemoryEstimate, TensorGroup, describe
from heddle.weights.tensor_types import TensorType
from models.tiny import falcon_h1, jamba, mamba, mamba2, nemotron_h, qwen3_5
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.base_mamba import TinyMamba

METADATA = {
    "general.architecture": "llama",
    "general.name": "Tiny [bold]\x1b[31m\nred",
    "llama.block_count": 3,
    "llama.context_length": 100,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.nonsense": math.inf,
    "tokenizer.ggml.tokens": [f"token{i}" for i in range(20)],
    "tokenizer.ggml.scores": np.linspace(-1, 0, 20, dtype=np.float32),
    "tokenizer.ggml.types": np.array([1, 2], np.int32),
}
TENSORS = [
    Tensor.of("norm", np.ones(64, np.float32)),
    Tensor.random("a", TensorType.Q4_1, (32, 64), seed=1),
    Tensor.random("b", TensorType.Q4_1, (16, 64), seed=2),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", METADATA, TENSORS)


def kv_per_token(tmp_path: Path, **changes: object) -> dict[str, int] | None:
    metadata = METADATA | {f"llama.{key.replace('__', '.')}": v for key, v in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return describe(write_gguf(tmp_path / "changed.gguf", metadata)).memory.kv_per_token  # type: ignore[return-value]


def test_experts_count_for_a_token_as_far_as_it_uses_them(tmp_path: Path) -> None:
    assert describe(write_gguf(tmp_path / "dense.gguf", METADATA, TENSORS)).experts is None
    stack = Tensor.random("blk.0.ffn_up_exps.weight", TensorType.Q4_1, (8, 16, 64), seed=3)
    keys = {"llama.expert_count": 8, "llama.expert_used_count": 2}
    found = describe(write_gguf(tmp_path / "mixed.gguf", METADATA | keys, [*TENSORS, stack]))
    elements, size = 64 + 48 * 64 + 2 * 16 * 64, 256 + 48 * 40 + 2 * 16 * 40
    assert found.experts == Experts(8, 2, elements, size)
    out = io.StringIO()
    print_description(found, Console(file=out, width=100))
    assert "8, 2 for each token" in out.getvalue()
    del keys["llama.expert_used_count"]
    unsaid = describe(write_gguf(tmp_path / "unsaid.gguf", METADATA | keys, [*TENSORS, stack]))
    assert unsaid.experts == Experts(8, None, None, None)
    print_description(unsaid, Console(file=io.StringIO(), width=100))


def test_describe_returns_the_facts_of_a_file(path: Path) -> None:
    found = describe(path)
    assert found.path == str(path)
    assert found.format == "GGUF 3"
    assert found.file_bytes == path.stat().st_size
    assert found.architecture == "llama"
    assert found.parameters == 64 + 48 * 64
    assert (found.context, found.vocabulary) == (100, 20)
    assert found.tensors == (
        TensorGroup("Q4_1", count=2, elements=48 * 64, bytes=48 * 40, supported=True),
        TensorGroup("F32", count=1, elements=64, bytes=256, supported=True),
    )
    # 3 layers, 2 heads, 8 wide, keys and values, 2 bytes
    assert found.memory == MemoryEstimate(
        48 * 40 + 256, {"f16": 3 * 2 * 8 * 2 * 2}, {"f16": 100 * 192}, state=0
    )


def test_kv_memory_follows_the_hyperparameters(tmp_path: Path) -> None:
    assert kv_per_token(tmp_path, attention__head_count_kv=None) == {"f16": 3 * 8 * 8 * 2 * 2}
    assert kv_per_token(tmp_path, attention__key_length=16) == {"f16": 3 * 2 * (16 + 16) * 2}
    assert kv_per_token(tmp_path, attention__value_length=4) == {"f16": 3 * 2 * (8 + 4) * 2}
    per_layer = np.array([1, 0, 4], np.int32)
    assert kv_per_token(tmp_path, attention__head_count_kv=per_layer) == {"f16": 5 * 8 * 2 * 2}
    assert kv_per_token(tmp_path, attention__shared_kv_layers=1) == {"f16": 2 * 2 * 8 * 2 * 2}
    assert kv_per_token(tmp_path, block_count=None) is None
    assert kv_per_token(tmp_path, embedding_length=None) is None
    assert kv_per_token(tmp_path, block_count="three") is None


def test_kv_memory_lists_codes_only_for_suitable_heads(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "wide.gguf", METADATA | {"llama.embedding_length": 64 * 8})
    memory = describe(path).memory
    elements = 3 * 2 * 64 * 2
    sizes = {"f16": elements * 2, "q8_0": elements * 34 // 32, "q4": elements * 18 // 32}
    assert memory.kv_per_token == sizes
    assert memory.kv_context == {"f16": 100 * 1536, "q8_0": 100 * 816, "q4": 100 * 432}
    assert "1.5 kB in f16, 816 bytes in q8_0, 432 bytes in q4" in rendered(describe(path))


def test_latents_take_one_vector_in_each_layer(tmp_path: Path) -> None:
    keys = {"kv_lora_rank": 48, "key_length_mla": 24, "value_length_mla": 8}
    metadata: dict[str, object] = {f"deepseek2.attention.{key}": n for key, n in keys.items()}
    metadata |= {"deepseek2.block_count": 3, "deepseek2.rope.dimension_count": 16}
    metadata["general.architecture"] = "deepseek2"
    found = describe(write_gguf(tmp_path / "latents.gguf", metadata))
    assert found.memory.kv_per_token == {"f16": 3 * 64 * 2, "q8_0": 3 * 64 * 34 // 32}
    assert "memory: latents, one token" in rendered(found)


def test_missing_metadata_is_reported_as_unknown(tmp_path: Path) -> None:
    found = describe(write_gguf(tmp_path / "bare.gguf", {}))
    assert found.architecture is found.name is found.context is found.vocabulary is None
    assert found.memory == MemoryEstimate(0, None, None, state=0)
    assert "unknown" in rendered(found)


def test_the_vocabulary_size_needs_no_vocabulary(tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "llama.vocab_size": 77}
    assert describe(write_gguf(tmp_path / "bare.gguf", metadata)).vocabulary == 77


def test_json_has_all_fields_with_long_arrays_truncated(path: Path) -> None:
    found = json.loads(describe(path).to_json())
    assert found["path"] == str(path)
    assert found["memory"]["kv_per_token"] == {"f16": 192}
    assert found["tensors"][0] == {
        "type": "Q4_1", "count": 2, "elements": 3072, "bytes": 1920, "supported": True
    }  # fmt: skip
    metadata = found["metadata"]
    assert list(metadata) == list(METADATA)
    assert metadata["general.name"] == METADATA["general.name"]
    assert metadata["llama.nonsense"] == "inf"
    assert metadata["tokenizer.ggml.types"] == [1, 2]
    tokens = metadata["tokenizer.ggml.tokens"]
    assert (tokens["length"], tokens["first"][:2]) == (20, ["token0", "token1"])
    assert metadata["tokenizer.ggml.scores"]["first"][0] == -1


def rendered(found: object, width: int = 120) -> str:
    output = io.StringIO()
    print_description(found, Console(file=output, width=width, force_terminal=width > 80))  # type: ignore[arg-type]
    return output.getvalue()


def test_a_narrow_terminal_shows_all_values(path: Path) -> None:
    text = rendered(describe(path), width=40)
    assert max(map(len, text.splitlines())) <= 40
    words = " ".join(text.split())
    for expected in ("3,136", "100 tokens", "192 bytes", "5.00 bits", "[20] token0"):
        assert expected in words
    assert "not supported" not in words


def test_tables_show_the_figures_without_the_escapes_of_the_file(path: Path) -> None:
    text = rendered(describe(path))
    for expected in ("llama", "3,136", "100 tokens", "192 bytes", "Q4_1", "5.00", "[20] token0"):
        assert expected in text
    assert "\x1b[31m\n" not in text
    assert r"Tiny [bold]\x1b[31m\nred" in text


def test_unsupported_tensor_types_are_reported(tmp_path: Path) -> None:
    tensors = [*TENSORS, Tensor.random("grid", TensorType.Q8_K, (2, 256), seed=3)]
    found = describe(write_gguf(tmp_path / "grid.gguf", METADATA, tensors))
    assert {group.type: group.supported for group in found.tensors} == {
        "Q4_1": True, "F32": True, "Q8_K": False
    }  # fmt: skip
    (line,) = [line for line in rendered(found).splitlines() if "Q8_K" in line]
    assert line.split()[-1] == "no"


def test_kv_memory_equals_the_size_of_native_pages(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "wide.gguf", METADATA | {"llama.embedding_length": 64 * 8})
    per_token = describe(path).memory.kv_per_token
    assert per_token is not None
    assert {kv_type: PAGE_TOKENS * each for kv_type, each in per_token.items()} == {
        kv_type: _native.KvCache.bytes_of_page(kv_type, 3, 2, 64) for kv_type in per_token
    }


def test_a_folder_shows_its_configuration_and_the_name_it_was_asked_by(tmp_path: Path) -> None:
    found = describe(PLAIN.write_folder(tmp_path / "folder"), "org/name")
    assert found.name == "org/name"
    text = rendered(found)
    assert '{"rope_theta": ' in text  # objects in config.json
    assert str(tmp_path / "folder") in text.replace(" ", "").replace("\n", "")


def test_floats_of_a_file_are_shown_as_they_were_written(tmp_path: Path) -> None:
    metadata = {"a.eps": 1e-5, "a.third": 1 / 3, "a.double": np.array([0.1])}
    path = write_gguf(tmp_path / "floats.gguf", metadata)
    found = describe(path).metadata
    assert found["a.eps"] == 1e-5
    assert found["a.double"] == [0.1]


@pytest.mark.extensions
def test_recurrent_layers_have_a_state_and_no_keys(tmp_path: Path) -> None:
    memory = describe(qwen3_5.MODELS[1].write(tmp_path / "recurrent.gguf")).memory
    # 3 of 5 layers: two inputs of 3 * 12 * 2 + 6 * 12 columns, 6 matrices of 12 x 12
    assert memory.state == 3 * 4 * (2 * 144 + 6 * 144)
    assert memory.kv_per_token == {"f16": 2 * 2 * 48 * 2}


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("model", "with_keys", "with_state"),
    [
        (nemotron_h.MODELS[0], 1, 2),
        (falcon_h1.MODELS[0], 2, 2),
        (mamba2.MODELS[1], 0, 2),
        (mamba.MODELS[1], 0, 2),
        (jamba.MODELS[0], 1, 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["folder", "file"])
def test_layers_may_have_one_part_or_attention_and_a_recurrence(
    model: TinyMamba, with_keys: int, with_state: int, form: str, tmp_path: Path
) -> None:
    path = tmp_path / form
    found = describe(model.write_folder(path) if form == "folder" else model.write(path))
    memory = found.memory
    each = (model.taps - 1) * model.channels + model.state_dim * model.inner
    assert memory.state == with_state * 4 * each
    assert memory.kv_per_token is not None
    assert memory.kv_per_token["f16"] == with_keys * 2 * 2 * model.kv_width
    assert ("none" in rendered(found)) == (not with_keys)
