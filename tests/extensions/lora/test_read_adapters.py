"""Adapters of PEFT and in GGUF, read for models of either format."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fake_hub import FakeHub, Repository, fake_hub
from folder_writer import write_safetensors
from gguf_writer import Tensor
from heddle.errors import ModelFileError, ModelSourceError
from heddle.extensions.lora import lengths
from heddle.extensions.lora.reading import digest_of, read_adapter
from heddle.hub_place import hub_place
from heddle.weights.formats import open_checkpoint
from heddle.weights.low_rank import LowRank, Whole
from heddle.weights.tensor_types import TensorType, dequantize
from lora_writer import (
    ALPHA,
    RANK,
    SCALE,
    changes_of,
    gguf_tensors,
    known_in_all,
    merged,
    peft_tensors,
    write_gguf_adapter,
    write_peft,
)
from models.tiny import granite, llama, mixtral, phi3, qwen2, qwen3, qwen3_moe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from heddle.extensions.lora.reading import AdapterFile
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.low_rank import Change
    from models.tiny.base import TinyModel

TIED, UNTIED = llama.MODELS[:2]
MODELS = [TIED, UNTIED, *phi3.MODELS, qwen2.MODELS[0], qwen3.MODELS[0], granite.MODELS[1]]
MODELS += [qwen3_moe.MODELS[1], mixtral.MODELS[0]]
FORMATS = ("hf", "gguf")


def write_model(model: TinyModel, format: str, place: Path) -> Path:
    return model.write_folder(place) if format == "hf" else model.write(place)


def write_adapter(model: TinyModel, format: str, place: Path) -> Path:
    changes = known_in_all(model)
    if format == "hf":
        return write_peft(place, peft_tensors(changes))
    return write_gguf_adapter(place, model, gguf_tensors(model, changes))


def values_of(checkpoint: Checkpoint, name: str) -> np.ndarray:
    tensor = checkpoint.tensors[f"{name}.weight"]
    return dequantize(checkpoint.read(f"{name}.weight"), tensor.type, tensor.shape)


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Checkpoint]:
    with open_checkpoint(UNTIED.write_folder(tmp_path / "base")) as checkpoint:
        yield checkpoint


def read(tmp_path: Path, base: Checkpoint, dtype: str = "F32", **config: object) -> AdapterFile:
    """What is read of changes of the first layer's q and the second one's down."""
    modules = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"]
    tensors = peft_tensors(changes_of(UNTIED, modules=modules))
    return read_adapter(write_peft(tmp_path / "adapter", tensors, dtype, **config), base)


# --- names, shapes and orders of rows ------------------------------------------------------------


@pytest.mark.parametrize("adapter_format", FORMATS)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_changes_are_those_of_the_merged_model(
    model: TinyModel, format: str, adapter_format: str, tmp_path: Path
) -> None:
    """Each matrix of a model with merged weights is the matrix of the plain one, and its change."""
    adapter = write_adapter(model, adapter_format, tmp_path / "adapter")
    new = write_model(merged(model, known_in_all(model)), format, tmp_path / "merged")
    with (
        open_checkpoint(write_model(model, format, tmp_path / "base")) as base,
        open_checkpoint(new) as wanted,
    ):
        found = read_adapter(adapter, base)
        for tensor in wanted.tensors.values():
            name = tensor.name.removesuffix(".weight")
            if len(tensor.shape) < 2 or name == "embedding" or name.endswith("router"):
                assert name not in found.changes
                continue
            names = [name]
            if len(tensor.shape) == 3:
                names = [f"{name}.{expert}" for expert in range(tensor.shape[0])]
            before, after = (values_of(each, name) for each in (base, wanted))
            shape = (len(names), *tensor.shape[-2:])
            for one, w, merged_w in zip(
                names, before.reshape(shape), after.reshape(shape), strict=True
            ):
                change = found.changes[one]
                result = w + np.float32(change.scale) * (change.b @ change.a)
                np.testing.assert_allclose(result, merged_w, atol=1e-6)
                assert (change.rank, change.scale) == (RANK, SCALE)
    assert found.rank == RANK


def test_an_adapter_may_lie_in_several_files(base: Checkpoint, tmp_path: Path) -> None:
    given = peft_tensors(changes_of(UNTIED))
    whole = read_adapter(write_peft(tmp_path / "whole", given), base)
    folder = write_peft(tmp_path / "parts", {})
    (folder / "adapter_model.safetensors").unlink()
    labels, places = sorted(given), {}
    for part in range(3):
        name = f"adapter_model-0000{part + 1}-of-00003.safetensors"
        some = {label: given[label] for label in labels[part::3]}
        write_safetensors(folder / name, some, "F32")
        places |= dict.fromkeys(some, name)
    index = folder / "adapter_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert read_adapter(folder, base).digest == whole.digest
    (folder / name).unlink()
    with pytest.raises(ModelSourceError, match="the shard adapter_model-00003-of-00003"):
        read_adapter(folder, base)
    index.write_text(json.dumps({"weight_map": {"x": "../whole/adapter_model.safetensors"}}))
    with pytest.raises(ModelFileError, match="not a plain file name"):
        read_adapter(folder, base)


@pytest.mark.parametrize("format", FORMATS)
def test_stacks_of_parameters_are_the_changes_of_their_experts(format: str, tmp_path: Path) -> None:
    """`target_parameters` of PEFT: rows of A are by expert, columns of B by rank."""
    model, layer = qwen3_moe.MODELS[1], "model.layers.1.mlp.experts"
    experts, width, hidden = model.experts, model.width, model.expert_width
    random = np.random.default_rng(3)
    both = {
        "down": [
            random.standard_normal(s, np.float32)
            for s in ((experts, 4, hidden), (experts, width, 4))
        ],
        "gate_up": [
            random.standard_normal(s, np.float32)
            for s in ((experts, 4, width), (experts, 2 * hidden, 4))
        ],
    }
    given = {}
    for (a, b), module in zip(both.values(), (layer, f"{layer}.base_layer"), strict=True):
        given[f"base_model.model.{module}.lora_A.weight"] = a.reshape(experts * 4, -1)
        columns = b.transpose(1, 2, 0).reshape(b.shape[1], -1)
        given[f"base_model.model.{module}.lora_B.weight"] = np.ascontiguousarray(columns)
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    adapter = write_peft(tmp_path / "x", given, target_parameters=parameters, target_modules=[])
    with open_checkpoint(write_model(model, format, tmp_path / "base")) as base:
        changes = read_adapter(adapter, base).changes
    assert len(changes) == 3 * experts
    for expert in range(experts):
        a, b = (one[expert] for one in both["gate_up"])
        for part, rows in (("gate", b[:hidden]), ("up", b[hidden:])):
            found = changes[f"layers.1.mlp.experts.{part}.{expert}"]
            assert np.array_equal(found.a, a)
            assert np.array_equal(found.b, rows)
        found = changes[f"layers.1.mlp.experts.down.{expert}"]
        assert np.array_equal(found.a, both["down"][0][expert])
        assert np.array_equal(found.b, both["down"][1][expert])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("piece", [1 << 22, 100], ids=["whole", "pieces"])
def test_rows_get_the_lengths_that_dora_says(
    format: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "_PIECE", piece)
    modules = ["model.layers.0.self_attn.q_proj", "lm_head"]
    changes = changes_of(UNTIED, modules=modules)
    state, given, wanted = UNTIED.state(), peft_tensors(changes), {}
    for module, (a, b) in changes.items():
        changed = state[f"{module}.weight"] + np.float32(SCALE) * (b @ a)
        wanted[module] = np.linspace(0.5, 2, len(changed), dtype=np.float32)
        given[f"base_model.model.{module}.lora_magnitude_vector"] = wanted[module]
        own = np.linalg.norm(changed, axis=1)
        state[f"{module}.weight"] = changed * (wanted[module] / own)[:, None]
    adapter = write_peft(tmp_path / "x", given, use_dora=True)
    with open_checkpoint(write_model(UNTIED, format, tmp_path / "base")) as base:
        for module, name in zip(modules, ("layers.0.attention.q", "output"), strict=True):
            change = read_adapter(adapter, base).changes[name]
            assert change.gains is not None
            result = values_of(base, name) * (1 + change.gains[:, None])
            result += np.float32(change.scale) * (change.b @ change.a)
            expected = state[f"{module}.weight"]
            if format == "gguf":
                expected = UNTIED.gguf_values(f"{module}.weight", expected)
            np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("format", FORMATS)
def test_both_formats_of_an_adapter_have_one_digest(format: str, tmp_path: Path) -> None:
    with open_checkpoint(write_model(UNTIED, format, tmp_path / "base")) as base:
        one, other = (
            read_adapter(write_adapter(UNTIED, each, tmp_path / each), base) for each in FORMATS
        )
    assert one.digest == other.digest
    assert (one.label, other.label) == FORMATS


@pytest.mark.parametrize("format", FORMATS)
def test_a_tied_output_matrix_has_a_change_of_its_own(format: str, tmp_path: Path) -> None:
    a, b = np.ones((RANK, TIED.width), np.float32), np.ones((TIED.vocabulary, RANK), np.float32)
    adapter = write_peft(tmp_path / "adapter", peft_tensors({"lm_head": (a, b)}))
    with open_checkpoint(write_model(TIED, format, tmp_path / "base")) as base:
        found = read_adapter(adapter, base)
    assert found.changes.keys() == {"output"}


@pytest.mark.parametrize(
    "prefix",
    [
        *("", "model.", "base_model.model.", "base_model.model.model."),
        "base_model.model.model.language_model.",
        "base_model.model.language_model.model.",
    ],
)
def test_prefixes_of_models_are_known(prefix: str, base: Checkpoint, tmp_path: Path) -> None:
    changes = changes_of(UNTIED, modules=["model.layers.0.mlp.up_proj"])
    tensors = {
        f"{prefix}{name.removeprefix('model.')}": one
        for name, one in peft_tensors(changes, "").items()
    }
    found = read_adapter(write_peft(tmp_path / "adapter", tensors), base)
    assert found.changes.keys() == {"layers.0.mlp.up"}


def test_names_may_have_the_adapters_name(base: Checkpoint, tmp_path: Path) -> None:
    changes = changes_of(UNTIED, modules=["model.layers.0.mlp.up_proj"])
    tensors = {
        name.replace(".weight", ".default.weight"): one
        for name, one in peft_tensors(changes).items()
    }
    found = read_adapter(write_peft(tmp_path / "adapter", tensors), base)
    assert found.changes.keys() == {"layers.0.mlp.up"}


# --- scales, types, digests ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "q", "down"),
    [
        ({}, 2.0, 2.0),
        ({"lora_alpha": 2}, 0.5, 0.5),
        ({"use_rslora": True}, 4.0, 4.0),
        ({"alpha_pattern": {"q_proj": 1.0}}, 0.25, 2.0),
        ({"alpha_pattern": {"proj": 1.0}}, 2.0, 2.0),
        ({"alpha_pattern": {r"layers\.\d+\.mlp\.(up|down)_proj": 1}}, 2.0, 0.25),
        ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 1}}, 0.25, 2.0),
        ({"alpha_pattern": {"^layers.0.self_attn.q_proj": 1}}, 2.0, 2.0),
        ({"alpha_pattern": {"model.layers.0.self_attn.q_proj|down_proj": 1}}, 0.25, 0.25),
        ({"alpha_pattern": {".*q_proj": 1, "q_proj": 2, "[a-z]+_proj": 3}}, 0.25, 0.75),
        ({"r": 8, "rank_pattern": {"q_proj": 4, "down_proj": 4}}, 2.0, 2.0),
        ({"alpha_pattern": None, "rank_pattern": {}, "use_rslora": None}, 2.0, 2.0),
    ],
)
def test_scales_are_those_of_peft(
    config: dict[str, object], q: float, down: float, base: Checkpoint, tmp_path: Path
) -> None:
    found = read(tmp_path, base, **config).changes
    assert found["layers.0.attention.q"].scale == q
    assert found["layers.1.mlp.down"].scale == down


@pytest.mark.parametrize(
    ("alpha", "scale"), [(ALPHA, SCALE), (0.1, 0.025), (0.0, 1.0), (None, 1.0)]
)
def test_scales_of_gguf_are_those_of_llama_cpp(
    alpha: float | None, scale: float, base: Checkpoint, tmp_path: Path
) -> None:
    tensors = gguf_tensors(UNTIED, changes_of(UNTIED))
    path = write_gguf_adapter(tmp_path / "x.gguf", UNTIED, tensors, adapter__lora__alpha=alpha)
    assert {one.scale for one in read_adapter(path, base).changes.values()} == {scale}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_the_type_is_the_smallest_that_holds_the_values(
    dtype: str, base: Checkpoint, tmp_path: Path
) -> None:
    """The digest does not depend on how the file stores equal values."""
    found = read(tmp_path, base, dtype)
    assert {one.type for one in found.changes.values()} == {TensorType.BF16}
    assert found.nbytes == sum(2 * (one.a.size + one.b.size) for one in found.changes.values())
    assert found.digest == read(tmp_path, base).digest


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1 + 2**-7, TensorType.BF16),
        (1 + 2**-10, TensorType.F16),
        (1 + 2**-11, TensorType.F32),
        (1e30, TensorType.F32),
        (2.0**100, TensorType.BF16),
    ],
)
def test_one_value_may_need_another_type(
    value: float, kind: TensorType, base: Checkpoint, tmp_path: Path
) -> None:
    changes = changes_of(UNTIED, modules=["model.layers.0.mlp.up_proj"])
    changes["model.layers.0.mlp.up_proj"][1][3, 1] = value
    found = read_adapter(write_peft(tmp_path / "adapter", peft_tensors(changes)), base)
    assert found.changes["layers.0.mlp.up"].type is kind


def test_each_content_has_a_digest_of_its_own(base: Checkpoint, tmp_path: Path) -> None:
    plain = read(tmp_path, base)
    others = [
        read(tmp_path, base, lora_alpha=16).digest,
        digest_of({f"{name}s": one for name, one in plain.changes.items()}),
        digest_of(dict([*plain.changes.items()][:1])),
    ]
    assert len({plain.digest, *others}) == 4


def test_quantised_tensors_become_floats(base: Checkpoint, tmp_path: Path) -> None:
    a = Tensor.random("blk.0.ffn_up.weight.lora_a", TensorType.Q8_0, (RANK, UNTIED.width), 3)
    scales = np.frombuffer(a.data, np.uint8).reshape(-1, 34).copy()
    scales[:, :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    a = Tensor(a.name, scales.tobytes(), a.shape, a.type)
    b = Tensor.of("blk.0.ffn_up.weight.lora_b", np.ones((UNTIED.ffn_width, RANK), np.float32))
    found = read_adapter(write_gguf_adapter(tmp_path / "x.gguf", UNTIED, [a, b]), base)
    values = found.changes["layers.0.mlp.up"].a
    codes = scales[:, 2:].copy().view(np.int8).reshape(a.shape)
    np.testing.assert_array_equal(values, codes.astype(np.float32) / 2)


# --- places and names ----------------------------------------------------------------------------


def test_the_file_of_weights_names_its_folder(base: Checkpoint, tmp_path: Path) -> None:
    found = read(tmp_path, base)
    by_file = read_adapter(str(tmp_path / "adapter" / "adapter_model.safetensors"), base)
    assert by_file.digest == found.digest
    assert by_file.label == found.label == "adapter"


@pytest.mark.parametrize(
    ("named", "warns"),
    [("org/base", False), ("", False), (None, False), ("/x/BASE/", False), ("org/zephyr", True)],
)
def test_another_model_of_the_adapter_is_a_warning(
    named: str | None,
    warns: bool,
    base: Checkpoint,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        read(tmp_path, base, base_model_name_or_path=named)
    assert ("was trained for" in caplog.text) == warns


def test_an_untrained_adapter_is_a_warning(
    base: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = changes_of(UNTIED, modules=["model.layers.0.mlp.up_proj"])
    changes["model.layers.0.mlp.up_proj"][1][:] = 0
    with caplog.at_level(logging.WARNING):
        read_adapter(write_peft(tmp_path / "adapter", peft_tensors(changes)), base)
    assert "changes nothing" in caplog.text


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def test_an_adapter_of_the_hub_is_fetched(hub: FakeHub, base: Checkpoint, tmp_path: Path) -> None:
    found = read(tmp_path, base)
    files = {file.name: file.read_bytes() for file in (tmp_path / "adapter").iterdir()}
    hub.repositories["org/lora"] = Repository.of({**files, "optimizer.pt": b"pickle"})
    assert read_adapter("org/lora", base).digest == found.digest
    assert sorted(hub.fetched()) == ["adapter_config.json", "adapter_model.safetensors"]
    hub.requests.clear()
    offline = replace(hub_place(), offline=True)
    assert read_adapter("hf:org/lora", base, offline).digest == found.digest
    with pytest.raises(ModelSourceError, match="nothing may be fetched"):
        read_adapter("org/lora", base, replace(offline, cache=tmp_path / "empty"))
    assert not hub.requests


def test_a_repository_without_an_adapter_is_refused(hub: FakeHub, base: Checkpoint) -> None:
    hub.repositories["org/model"] = Repository.of({"config.json": b"{}"})
    hub.repositories["org/old"] = Repository.of({"adapter_config.json": b'{"peft_type": "LORA"}'})
    with pytest.raises(ModelSourceError, match=r"org/model has no adapter_config.json and"):
        read_adapter("org/model", base)
    with pytest.raises(ModelSourceError, match=r"has no adapter_model.safetensors"):
        read_adapter("org/old", base)


def test_digests_cover_lengths_and_whole_matrices() -> None:
    plain = LowRank(np.ones((1, 2), np.float32), np.ones((3, 1), np.float32), 1, TensorType.F32)
    gains = (np.zeros(3, np.float32), np.ones(3, np.float32))
    wholes = (Whole(np.full((3, 2), value, np.float32), TensorType.F32) for value in (1, 2))
    changes: list[Change] = [plain, *(replace(plain, gains=one) for one in gains), *wholes]
    assert len({digest_of({"output": change}) for change in changes}) == len(changes)
