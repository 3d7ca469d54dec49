"""Settings and files of models that every executor refuses, on each device of the registry."""

# Outcomes are unions; each test knows which member its plan gives.
# mypy: disable-error-code="attr-defined, assignment, return-value"

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from tiny_files import SMALL, tiny_file

from devices import load_on
from gguf_writer import Tensor, write_gguf
from heddle.errors import (
    ConfigError,
    ModelFileError,
    UnsupportedModelError,
)
from heddle.executors.devices import loader
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.tensor_types import TensorType
from models.tiny.llama import PLAIN

pytestmark = pytest.mark.usefixtures("masks_in_time")


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"device 'abacus' .*: cpu, .*, torch, cuda") as error:
        loader("abacus")
    assert error.value.param == "device"


@pytest.mark.parametrize("device", ["cpu:0", "cuda:", "cuda:x", "torch:1"])
def test_only_a_gpu_has_a_number(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{device}' is unknown"):
        loader(device)


@pytest.mark.parametrize(("device", "extra"), [("torch", "torch"), ("cuda:1", "cuda")])
def test_a_device_without_torch_names_the_extra(device, extra, monkeypatch) -> None:
    for name in [one for one in sys.modules if one.startswith("heddle.extensions.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=rf"install 'heddle\[{extra}\]'") as error:
        loader(device)
    assert error.value.param == "device"


def test_settings_that_do_not_fit_are_named(device, tmp_path):
    file = tiny_file(tmp_path)
    with pytest.raises(ConfigError, match="kv_cache of 100 bytes does not hold one page"):
        load_on(device, file, replace(SMALL, kv_cache=100))
    too_long = PLAIN.metadata()["llama.context_length"] + 1
    with pytest.raises(ConfigError, match="more than the model's"):
        load_on(device, file, replace(SMALL, context=too_long))


@pytest.mark.parametrize("kv_type", ["q8_0", "q4"])
def test_codes_need_whole_blocks_of_a_head(device, tmp_path, kv_type):
    refused = rf"kv_type {kv_type} needs heads with a multiple of 32 .* 16"
    if kv_type == "q4" and device.startswith("torch"):
        refused = "kv_type q4 is not supported on device torch"
    with pytest.raises(ConfigError, match=refused):
        load_on(device, tiny_file(tmp_path), replace(SMALL, kv_type=kv_type))


def test_missing_and_misshapen_tensors_are_named(device, tmp_path):
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight is missing"):
        load_on(device, tiny_file(tmp_path, tensors={"blk.0.attn_q.weight": None}), SMALL)
    with pytest.raises(ModelFileError, match=r"token_embd\.weight has shape"):
        load_on(device, tiny_file(tmp_path, {"llama.vocab_size": PLAIN.vocabulary + 1}), SMALL)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 2**62),
        ("llama.block_count", float("inf")),
        ("llama.embedding_length", 2**40),
        ("llama.attention.head_count", 2**40),
        ("llama.attention.key_length", 2**31),
        ("llama.attention.key_length", 7),
        ("llama.rope.dimension_count", 2**40),
        ("llama.rope.dimension_count", 7),
        ("llama.rope.freq_base", float("nan")),
        ("llama.rope.freq_base", np.array([1e300])),
        ("llama.attention.layer_norm_rms_epsilon", float("inf")),
        ("llama.vocab_size", 2**62),
        ("llama.feed_forward_length", 2**62),
    ],
)
def test_hostile_hyperparameters_are_typed_errors(device, tmp_path, key, value):
    with pytest.raises((ModelFileError, UnsupportedModelError, ConfigError)):
        load_on(device, tiny_file(tmp_path, {key: value}), SMALL)


@pytest.mark.parametrize("difference", [-1, 1])
@pytest.mark.parametrize("says_so", [True, False])
def test_a_tokenizer_of_another_size_than_the_embedding_is_refused(
    device, tmp_path, difference, says_so
):
    """The model would choose tokens without text, or look up rows that it lacks."""
    size = PLAIN.vocabulary
    changes = {
        "tokenizer.ggml.tokens": [str(id) for id in range(size + difference)],
        "llama.vocab_size": size if says_so else None,
    }
    found = rf"is {size}, but the tokenizer has {size + difference} tokens"
    with pytest.raises(ModelFileError, match=found if says_so else "token_embd") as error:
        load_on(device, PLAIN.checkpoint(tmp_path, changes), SMALL)
    assert error.value.field == ("llama.vocab_size" if says_so else "token_embd.weight")
    right = changes | {"tokenizer.ggml.tokens": ["t"] * size}
    load_on(device, PLAIN.checkpoint(tmp_path, right), SMALL).close()


def test_rope_divisors_must_be_positive(device, tmp_path):
    divisors = Tensor.of("rope_freqs.weight", np.zeros(PLAIN.head_dim // 2, np.float32))
    path = write_gguf(tmp_path / "a.gguf", PLAIN.metadata(), [*PLAIN.tensors(), divisors])
    with pytest.raises(ModelFileError, match="positive numbers, got 0"):
        load_on(device, GGUFCheckpoint.open(path), SMALL)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("output_norm.weight", TensorType.F32),
        ("blk.0.attn_norm.weight", TensorType.F32),
        ("blk.1.ffn_down.weight", TensorType.F32),
        ("token_embd.weight", TensorType.F16),
        ("blk.0.attn_q.weight", TensorType.BF16),
        ("blk.0.attn_q.weight", TensorType.Q8_0),
        ("blk.0.ffn_up.weight", TensorType.Q4_1),
    ],
)
def test_weights_that_are_not_finite_are_refused_by_name(device, tmp_path, name, dtype, value):
    """One weight, the scale of one block, or (Q4_1) its minimum."""
    tensor = next(t for t in PLAIN.tensors() if t.name == name)
    size = np.prod(tensor.shape) // dtype.block_elements * dtype.block_bytes
    data = bytearray(tensor.data if dtype is TensorType.F32 else size)
    single = np.array([value], np.float32)
    half = single.astype(np.float16).tobytes()
    raw = {TensorType.F32: single.tobytes(), TensorType.BF16: single.tobytes()[2:]}.get(dtype, half)
    at = {TensorType.Q8_0: 3 * 34, TensorType.Q4_1: 3 * 20 + 2}.get(dtype, 5 * len(raw))
    data[at : at + len(raw)] = raw
    damaged = replace(tensor, data=bytes(data), type=dtype)
    file = tiny_file(tmp_path, tensors={name: damaged})
    with pytest.raises(ModelFileError, match=rf"{name} has infinite or NaN.*allow-nonfinite") as e:
        load_on(device, file, SMALL)
    assert e.value.field == name
    load_on(device, file, replace(SMALL, allow_nonfinite=True)).close()
