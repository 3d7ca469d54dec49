"""The registry of families, and the reading of hyperparameters that all families share."""

from __future__ import annotations

import importlib
import math
import pkgutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gguf_writer import Tensor, write_gguf
from heddle.doors import architectures, extensions, families, family_with
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.extensions.reference.ops import ReferenceLoader
from heddle.models import families as core_families
from heddle.models.build import build
from heddle.models.positions import temperature
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.gguf.hyperparameters import hyperparameters_of
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.hyperparameters import Bounds, Hyperparameters
from models.attentions import attentions
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.models.decoder import Decoder
    from heddle.models.ops import RopeSpec


def rope_of(model: Decoder) -> RopeSpec:
    rope = attentions(model)[0].rope
    assert rope is not None
    return rope


def test_each_family_has_a_file_and_each_architecture_one_family() -> None:
    for file in pkgutil.iter_modules(core_families.__path__):
        assert importlib.import_module(f"{core_families.__name__}.{file.name}").FAMILY in families()
    for format in ("gguf", "hf"):
        rows = architectures(format)
        assert len(rows) == sum(len(getattr(family, format)) for family in families())


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("format", "architecture", "file"),
    [
        ("gguf", "llama", "heddle.models.families.llama"),
        ("gguf", "deepseek2", "heddle.extensions.deepseek.deepseek"),
        ("hf", "rwkv7", "heddle.extensions.rwkv.rwkv7"),
    ],
)
def test_only_files_with_a_similar_name_are_imported(
    format: str, architecture: str, file: str
) -> None:
    code = "import sys; from heddle.doors import *; family_with(*sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, format, architecture]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {*done.stdout.split()}
    references = [one for extension in extensions().values() for one in extension.families]
    files = {one.partition(":")[0] for one in references} & imported
    assert file in imported
    assert {name.rpartition(".")[2][:4] for name in files} <= {architecture[:4]}
    assert family_with(format, architecture) in families()
    assert family_with(format, "blocks") is None


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"'blocks' is not supported; supported: .*llama"
    ):
        build(PLAIN.checkpoint(tmp_path, {"general.architecture": "blocks"}))
    with pytest.raises(ModelFileError, match=r"general\.architecture must be a string, got None"):
        PLAIN.checkpoint(tmp_path, {"general.architecture": None})


def test_hyperparameters_have_their_defaults(tmp_path: Path) -> None:
    keys = ("attention.head_count_kv", "attention.key_length", "attention.value_length")
    keys += ("rope.dimension_count", "rope.freq_base", "vocab_size")  # type: ignore[assignment]
    changes: dict[str, object] = {f"llama.{key}": None for key in keys}
    model = build(PLAIN.checkpoint(tmp_path, {**changes, "tokenizer.ggml.tokens": ["a"] * 9}))
    assert model.shape.kv_heads == PLAIN.heads
    assert model.shape.head_dim == PLAIN.width // PLAIN.heads
    assert model.shape.vocabulary == 9
    assert rope_of(model).dim == model.shape.head_dim
    assert rope_of(model).base == 10_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", None),
        ("llama.block_count", 0),
        ("llama.block_count", 2**62),
        ("llama.embedding_length", "wide"),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.layer_norm_rms_epsilon", -1e-5),
        ("llama.context_length", True),
        ("llama.attention.head_count", 0.5),
        ("llama.attention.head_count", np.array([4, 4])),
        ("llama.rope.dimension_count", 5),
        ("llama.rope.scaling.factor", -2.0),
    ],
)
def test_an_invalid_hyperparameter_is_named(key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        build(PLAIN.checkpoint(tmp_path, {key: value}))
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "ntk"),
        ("llama.rope.scaling.type", np.array([1, 2])),
        ("llama.attention.value_length", 8),
    ],
)
def test_unsupported_hyperparameters_are_refused_by_name(
    key: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        build(PLAIN.checkpoint(tmp_path, {key: value}))
    assert caught.value.param == key


def test_linear_scaling_divides_positions(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.factor": 4.0}
    assert set(rope_of(build(PLAIN.checkpoint(tmp_path, scaling))).factors) == {4.0}
    none = scaling | {"llama.rope.scaling.type": "none"}
    assert rope_of(build(PLAIN.checkpoint(tmp_path, none))).factors == ()


def test_yarn_scales_slow_pairs_and_keeps_fast_pairs(tmp_path: Path) -> None:
    scaling = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 4096,
    }
    rope = rope_of(build(PLAIN.checkpoint(tmp_path, scaling)))
    assert rope.factors[0] == 1.0
    assert rope.factors[-1] == pytest.approx(4.0)
    assert list(rope.factors) == sorted(rope.factors)
    assert rope.scale == pytest.approx(0.1 * math.log(4.0) + 1)


def test_yarn_of_gpt_oss_in_gguf_mixes_between_two_pairs() -> None:
    """No key of a GGUF file says it."""
    bounds = Bounds.of([(8,)])
    for architecture, whole in (("gpt-oss", False), ("llama", None)):
        metadata = {f"{architecture}.rope.scaling.type": "yarn"}
        read = hyperparameters_of(metadata, architecture, bounds)
        assert read.get("rope.whole_pairs") is whole


@pytest.mark.parametrize("truncate", [None, True, False])
def test_yarn_mixes_between_whole_pairs_unless_the_config_forbids_it(
    truncate: bool | None, tmp_path: Path
) -> None:
    """gpt-oss has `truncate` false. The formula is that of YaRN's paper, section 3.2."""
    scaling: dict[str, object] = {"rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0}
    scaling |= {"original_max_position_embeddings": 512}
    scaling |= {} if truncate is None else {"truncate": truncate}
    with HuggingFaceCheckpoint.open(PLAIN.write_folder(tmp_path, rope_parameters=scaling)) as read:
        rope = rope_of(build(read))
    ends = [
        rope.dim * math.log(512 / (turns * 2 * math.pi)) / (2 * math.log(1e3)) for turns in (32, 1)
    ]
    low, high = ends if truncate is False else (math.floor(ends[0]), math.ceil(ends[1]))
    low = max(low, 0)
    kept = [1 - min(max((pair - low) / (high - low), 0), 1) for pair in range(rope.dim // 2)]
    assert any(0 < share < 1 for share in kept)
    assert rope.factors == pytest.approx([1 / ((1 - share) / 4 + share) for share in kept])


@pytest.mark.parametrize(("context", "divisor"), [(0, 3.0), (65, 3.0), (64, 2.0)])
def test_longrope_uses_the_divisors_of_the_served_context(
    context: int, divisor: float, tmp_path: Path
) -> None:
    scaling = {
        "llama.context_length": 256,
        "llama.rope.scaling.type": "longrope",
        "llama.rope.scaling.original_context_length": 64,
    }
    factors = {"rope_factors_long": 3.0, "rope_factors_short": 2.0}
    checkpoint = PLAIN.checkpoint(
        tmp_path, scaling, [vector(f"{name}.weight", value) for name, value in factors.items()]
    )
    model = build(checkpoint, context)
    rope = model.load(ReferenceLoader(checkpoint)).layers[0].mixer.rope
    assert set(rope.factors) == {divisor}
    assert rope.scale == pytest.approx(math.sqrt(1 + math.log(4) / math.log(64)))


@pytest.mark.parametrize(
    ("context", "base"), [(0, 163_014.455), (64, 163_014.455), (40, 92_432.79), (8, 10_000.0)]
)
def test_dynamic_scaling_uses_the_served_context(context: int, base: float, tmp_path: Path) -> None:
    """The bases are those of `transformers` for sequences of so many tokens."""
    scaling: dict[str, object] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.5}
    scaling["original_max_position_embeddings"] = 8
    folder = PLAIN.write_folder(tmp_path, rope_parameters=scaling)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        rope = rope_of(build(checkpoint, context))
    assert rope.base == pytest.approx(base, rel=1e-5)


def test_dynamic_scaling_does_nothing_within_the_original_context(tmp_path: Path) -> None:
    scaling = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    folder = PLAIN.write_folder(tmp_path, rope_parameters=scaling)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        assert rope_of(build(checkpoint)).base == 1e4


def test_divisors_of_the_file_multiply_with_scaling(tmp_path: Path) -> None:
    divisors = np.float32([1, 1, 1, 2, 2, 2, 8, 8])
    scaling = {"llama.rope.scaling.factor": 4.0}
    checkpoint = PLAIN.checkpoint(tmp_path, scaling, [Tensor.of("rope_freqs.weight", divisors)])
    weights = build(checkpoint).load(ReferenceLoader(checkpoint))
    assert weights.layers[0].mixer.rope.factors == (4, 4, 4, 8, 8, 8, 32, 32)


def vector(name: str, value: float) -> Tensor:
    return Tensor.of(name, np.full(8, value, np.float32))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "few.gguf", PLAIN.metadata(), PLAIN.tensors()[1:])
    with pytest.raises(ModelFileError, match=r"tensor token_embd\.weight is missing"):
        ReferenceModel(GGUFCheckpoint.open(path))


def test_0_turns_a_number_off_and_false_does_not() -> None:
    assert Hyperparameters({"logit_cap": 0}).positive_or_zero("logit_cap", 1.0) == 0
    with pytest.raises(ModelFileError, match="logit_cap must be a positive number, got False"):
        Hyperparameters({"logit_cap": False}).positive_or_zero("logit_cap", 1.0)


def test_growth_with_the_position_is_refused_where_a_part_of_a_head_is_rotated(
    tmp_path: Path,
) -> None:
    changes = {"llama.attention.temperature_scale": 0.1, "llama.rope.dimension_count": 4}
    read = PLAIN.checkpoint(tmp_path, changes).hyperparameters
    with pytest.raises(UnsupportedModelError, match="rotates a part of a head"):
        temperature(read, PLAIN.head_dim)
