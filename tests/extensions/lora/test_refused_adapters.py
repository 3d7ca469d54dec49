"""Adapters that are damaged, hostile, of another model, or of a kind that is not supported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from folder_writer import write_raw_safetensors, write_safetensors
from gguf_writer import Tensor, gguf_bytes
from heddle.errors import (
    HeddleError,
    ModelFileError,
    ModelSourceError,
    UnsupportedModelError,
)
from heddle.extensions.lora.reading import read_adapter
from heddle.weights.formats import open_checkpoint
from heddle.weights.tensor_types import TensorType
from lora_writer import (
    RANK,
    changes_of,
    gguf_metadata,
    gguf_tensors,
    peft_config,
    peft_tensors,
    write_gguf_adapter,
    write_peft,
)
from models.tiny import bailing_moe, bloom, deepseek_v2, falcon, gpt2, llama, qwen3_moe, qwen3_next

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from heddle.weights.checkpoint import Checkpoint

MODEL = llama.MODELS[1]
UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"
LORA_A, LORA_B = (f"base_model.model.{UP}.lora_{side}.weight" for side in "AB")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    folder = tmp_path_factory.mktemp("models") / "base"
    with open_checkpoint(MODEL.write_folder(folder)) as checkpoint:
        yield checkpoint


def tensors(*modules: str) -> dict[str, np.ndarray]:
    return peft_tensors(changes_of(MODEL, modules=modules or [UP]))


def pair(rank: int, rows: int, columns: int, module: str = UP) -> dict[str, np.ndarray]:
    a, b = np.ones((rank, columns), np.float32), np.ones((rows, rank), np.float32)
    return peft_tensors({module: (a, b)})


# --- adapter_config.json -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "field", "problem"),
    [
        *(
            ({"peft_type": kind}, "peft_type", f"peft_type '{kind}' is not supported")
            for kind in ("ADALORA", "LOHA", "IA3", "PROMPT_TUNING")
        ),
        ({"bias": "all"}, "bias", "bias 'all' is not supported"),
        ({"bias": "lora_only"}, "bias", "biases of its model"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out", "transposed matrices"),
        ({"ensure_weight_tying": True}, "ensure_weight_tying", "by one tensor"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices", "rows of the embedding"),
        ({"lora_bias": True}, "lora_bias", "changes biases"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens", "aLoRA"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication", "layers twice"),
        (
            {"target_parameters": ["mlp.experts.down_proj"], "rank_pattern": {"down_proj": 2}},
            "rank_pattern",
            "ranks must be equal",
        ),
        ({"use_qalora": True}, "use_qalora", "QA-LoRA"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora", "BD-LoRA"),
        ({"arrow_config": {"top_k": 2}}, "arrow_config", "Arrow"),
        ({"kasa_config": {"beta": 1}}, "kasa_config", "KaSA"),
        ({"monteclora_config": {"a": 1}}, "monteclora_config", "MonteCLoRA"),
        *(
            ({"init_lora_weights": start}, "init_lora_weights", "path_initial_model")
            for start in ("pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "OLoRA")
        ),
    ],
)
def test_other_kinds_of_adapters_are_refused_by_field(
    config: dict[str, object], field: str, problem: str, base: Checkpoint, tmp_path: Path
) -> None:
    adapter = write_peft(tmp_path / "x", tensors(), **config)
    with pytest.raises(UnsupportedModelError, match=problem) as caught:
        read_adapter(adapter, base)
    assert caught.value.param == field


def test_fields_that_change_no_arithmetic_are_read(
    base: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {
        "lora_dropout": 0.1,
        "layers_to_transform": [0],
        "layers_pattern": "layers",
        "exclude_modules": ["v_proj"],
        "megatron_core": "megatron.core",
        "eva_config": {"rho": 2.0},
        "corda_config": None,
        "init_lora_weights": "eva",
        "qalora_group_size": 16,
        "modules_to_save": [],
        "task_type": "CAUSAL_LM",
        "velora_config": {"num_groups": 2},
        "future": None,
    }
    assert read_adapter(write_peft(tmp_path / "x", tensors(), **config), base).rank == RANK
    assert "unknown fields" not in caplog.text
    write_peft(tmp_path / "x", tensors(), newer=True, other={"a": 1}, off=False)
    read_adapter(tmp_path / "x", base)
    assert "unknown fields are ignored: newer, other" in caplog.text


@pytest.mark.parametrize(
    ("config", "field", "problem"),
    [
        *(({"r": rank}, "r", "from 1 to 1,024") for rank in (0, -1, 1025, 2.0, True, "4", None)),
        ({"r": 8}, LORA_A, r"has rank 4, and adapter_config.json says 8"),
        ({"rank_pattern": {"up_proj": 2}}, LORA_A, "says 2"),
        ({"rank_pattern": {"up_proj": "4"}}, "rank_pattern", "must be a number"),
        ({"rank_pattern": ["up_proj"]}, "rank_pattern", "must be an object"),
        *(
            ({"lora_alpha": alpha}, "lora_alpha", "must be a number other than 0")
            for alpha in (0, None, True, "8", float("nan"), float("inf"), 1e31, -1e-31)
        ),
        ({"alpha_pattern": {"up_proj": float("nan")}}, "alpha_pattern", "must be a number"),
        ({"alpha_pattern": {"[z-a]": 1}}, "alpha_pattern", "no regular expression"),
        (
            {"alpha_pattern": dict.fromkeys(map(str, range(5000)), 1)},
            "alpha_pattern",
            "the most are",
        ),
        ({"use_rslora": "yes"}, "use_rslora", "must be true or false"),
    ],
)
def test_wrong_values_are_refused_by_field(
    config: dict[str, object], field: str, problem: str, base: Checkpoint, tmp_path: Path
) -> None:
    adapter = write_peft(tmp_path / "x", tensors(), **config)
    with pytest.raises(ModelFileError, match=problem) as caught:
        read_adapter(adapter, base)
    assert caught.value.field == field


@pytest.mark.parametrize("kind", [None, 7, ["LORA"]])
def test_a_config_without_a_kind_is_refused(kind: object, base: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="peft_type must be 'LORA'"):
        read_adapter(write_peft(tmp_path / "x", tensors(), peft_type=kind), base)


@pytest.mark.parametrize(
    "key",
    [
        *("(a+)+", "(a|a)*", "((a|b)|c)", "(?=a)", r"(a)\1", "a{9}", "a**", "[^a]", "é", ""),
        *(".*.*.*", "(.|.|.|.)" * 10, "a" * 513, r"\w", "(a", "a)", "[a", "|" * 1000 + ".*.*"),
    ],
)
def test_expressions_that_may_take_long_are_refused(
    key: str, base: Checkpoint, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match="simple regular expressions") as caught:
        read_adapter(write_peft(tmp_path / "x", tensors(), alpha_pattern={key: 1}), base)
    assert caught.value.param == "alpha_pattern"


def test_many_expressions_may_not_take_long_either(base: Checkpoint, tmp_path: Path) -> None:
    patterns = {f".*{i}.*": 1 for i in range(30)}
    with pytest.raises(UnsupportedModelError, match="simple regular expressions"):
        read_adapter(write_peft(tmp_path / "x", tensors(), alpha_pattern=patterns), base)
    plain = {f"layers.{i}.mlp.up_proj": 8 for i in range(3000)}
    assert read_adapter(write_peft(tmp_path / "x", tensors(), alpha_pattern=plain), base)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"r": 1' + b"0" * 99 + b"}"])
def test_a_config_that_is_no_json_is_refused(
    content: bytes, base: Checkpoint, tmp_path: Path
) -> None:
    folder = write_peft(tmp_path / "x", tensors())
    (folder / "adapter_config.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"adapter_config\.json") as caught:
        read_adapter(folder, base)
    assert caught.value.field == "adapter_config.json"


# --- tensors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("model.layers.0.self_attn.q_proj.weight", "whole copies of modules"),
        ("score.weight", "whole copies of modules"),
        (f"{UP}.lora_B.bias", "changes biases"),
        (f"{UP}.lora_diag", "KaSA"),
        (f"{UP}.ia3_l", "whole copies of modules"),
    ],
)
def test_other_tensors_are_refused_by_name(
    name: str, problem: str, base: Checkpoint, tmp_path: Path
) -> None:
    label = f"base_model.model.{name}"
    adapter = write_peft(tmp_path / "x", tensors() | {label: np.ones((2, 2), np.float32)})
    with pytest.raises(UnsupportedModelError, match=problem) as caught:
        read_adapter(adapter, base)
    assert caught.value.param == label


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ({}, "tensors", "changes nothing"),
        ({LORA_A: np.ones((4, 32))}, LORA_A, "has no lora_b beside it"),
        ({LORA_B: np.ones((48, 4))}, LORA_B, "has no lora_a beside it"),
        (pair(4, 48, 31), LORA_B, r"change a matrix of shape \(48, 31\).*has shape \(48, 32\)"),
        (pair(4, 47, 32), LORA_B, r"change a matrix of shape \(47, 32\).*has shape \(48, 32\)"),
        (pair(0, 48, 32), LORA_A, "has rank 0; ranks from 1 to 1,024"),
        (pair(1025, 48, 32), LORA_A, "has rank 1025; ranks from 1 to 1,024"),
        (
            {LORA_A: np.ones((4, 32)), LORA_B: np.ones((48, 3))},
            LORA_B,
            r"has shape \(4, 32\) and .* has shape \(48, 3\)",
        ),
        ({LORA_A: np.ones(4), LORA_B: np.ones((48, 4))}, LORA_A, r"have 2 dimensions"),
        ({LORA_A: np.ones((4, 32)), LORA_B: np.ones((48, 4, 1, 1))}, LORA_B, "have 2 dimensions"),
        (
            pair(4, 40, 32, "lm_head"),
            "base_model.model.lm_head.lora_B.weight",
            "trained with 40 tokens, and the model has 32",
        ),
        *(
            (pair(4, 48, 32, module), f"{module}.weight", "has no matrix of this name")
            for module in (
                *("model.layers.2.mlp.up_proj", "model.layers.0.mlp.c_fc"),
                *("vision_tower.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_norm", "x"),
                *("model.layers.-1.mlp.up_proj", "model.layers.9999999999.mlp.up_proj"),
            )
        ),
        *(
            (tensors() | {twice: tensors()[LORA_A]}, twice, "change the same matrix")
            for twice in (
                LORA_A.replace(".weight", ".default.weight"),
                LORA_A.removeprefix("base_model.model."),
            )
        ),
        (
            tensors() | pair(4, 48, 32, UP.removeprefix("model.")),
            LORA_B.replace("model.model.", "model."),
            "both change model.layers.0.mlp.up_proj.weight",
        ),
        (
            tensors() | pair(4, 48, 32, UP.replace(".0.", ".00.")),
            LORA_B.replace(".0.", ".00."),
            "both change",
        ),
    ],
)
def test_tensors_that_fit_no_model_are_refused_by_name(
    given: dict[str, np.ndarray], field: str, problem: str, base: Checkpoint, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=problem) as caught:
        read_adapter(write_peft(tmp_path / "x", given), base)
    assert caught.value.field == field


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("label", [LORA_A, LORA_B])
def test_values_that_are_not_finite_are_refused(
    label: str, value: float, base: Checkpoint, tmp_path: Path
) -> None:
    given = tensors(UP, DOWN)
    given[label][1, 2] = value
    with pytest.raises(ModelFileError, match="infinite or NaN") as caught:
        read_adapter(write_peft(tmp_path / "x", given), base)
    assert caught.value.field == label


def test_other_dtypes_are_refused(base: Checkpoint, tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "x", tensors())
    integers = {LORA_A: np.ones((4, 32), np.int64), LORA_B: np.ones((48, 4), np.int64)}
    write_safetensors(folder / "adapter_model.safetensors", integers)
    with pytest.raises(UnsupportedModelError, match=r"of dtype I64 .* F32, F16, BF16"):
        read_adapter(folder, base)


def test_a_file_that_lies_about_places_is_refused(base: Checkpoint, tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "x", tensors())
    header = {LORA_A: {"dtype": "F32", "shape": [4, 32], "data_offsets": [0, 1 << 40]}}
    write_raw_safetensors(folder / "adapter_model.safetensors", header, bytes(512))
    with pytest.raises(ModelFileError, match="takes 512") as caught:
        read_adapter(folder, base)
    assert caught.value.field == LORA_A


def test_shapes_are_checked_before_values_are_read(base: Checkpoint, tmp_path: Path) -> None:
    """A pair that does not fit is refused although an earlier one has NaN."""
    given = tensors() | pair(4, 5, 6, DOWN)
    given[LORA_A][:] = np.nan
    with pytest.raises(ModelFileError, match=r"change a matrix of shape \(5, 6\)"):
        read_adapter(write_peft(tmp_path / "x", given), base)


# --- models --------------------------------------------------------------------------------------


EXPERTS = "model.layers.0.mlp.experts"


@pytest.mark.parametrize(
    ("rank", "shape", "module", "field", "problem"),
    [
        (4, (20, 32), f"{EXPERTS}.7.up_proj", f"{EXPERTS}.7.up_proj.weight", "has 7 experts"),
        (4, (21, 32), f"{EXPERTS}.6.up_proj", "lora_B", r"\(21, 32\), and .* shape \(20, 32\)"),
        (28, (41, 32), EXPERTS, "lora_B", r"\(7, 41, 32\), and .* has shape \(7, 40, 32\)"),
        (24, (40, 32), EXPERTS, "lora_B", r"\(6, 40, 32\), and .* has shape \(7, 40, 32\)"),
        (27, (40, 32), EXPERTS, "lora_A", "27 rows are not those of experts of rank 4"),
    ],
)
def test_experts_that_do_not_fit_are_refused(
    rank: int, shape: tuple[int, int], module: str, field: str, problem: str, tmp_path: Path
) -> None:
    adapter = write_peft(tmp_path / "x", pair(rank, *shape, module))
    with (
        open_checkpoint(qwen3_moe.MODELS[0].write_folder(tmp_path / "base")) as base,
        pytest.raises(ModelFileError, match=problem) as caught,
    ):
        read_adapter(adapter, base)
    assert field in str(caught.value.field)


def test_dora_of_experts_is_refused(tmp_path: Path) -> None:
    module = f"{EXPERTS}.1.up_proj"
    given = pair(4, 20, 32, module)
    given[f"base_model.model.{module}.lora_magnitude_vector"] = np.ones(20, np.float32)
    adapter = write_peft(tmp_path / "x", given, use_dora=True)
    with (
        open_checkpoint(qwen3_moe.MODELS[0].write_folder(tmp_path / "base")) as base,
        pytest.raises(UnsupportedModelError, match="DoRA of experts"),
    ):
        read_adapter(adapter, base)


TABLE = "base_model.model.model.embed_tokens"
WHOLE, OF_TABLE = f"{TABLE}.weight", f"{TABLE}.lora_embedding"


@pytest.mark.parametrize(
    ("given", "error", "problem"),
    [
        ({WHOLE: np.ones((31, 32))}, ModelFileError, r"has shape \(31, 32\), and .*\(32, 32\)"),
        ({WHOLE: np.full((32, 32), np.inf)}, ModelFileError, "infinite or NaN"),
        ({WHOLE: np.ones((32, 32))}, UnsupportedModelError, "may have 1,000 values"),
        ({f"{OF_TABLE}_A": np.ones((4, 32))}, ModelFileError, "has no lora_b beside it"),
        (
            {f"{OF_TABLE}_A": np.ones((4, 33)), f"{OF_TABLE}_B": np.ones((32, 4))},
            ModelFileError,
            r"change a matrix of shape \(32, 33\)",
        ),
        (
            {"base_model.model.model.layers.0.mlp.up_proj.lora_embedding_A": np.ones((4, 32))}
            | {"base_model.model.model.layers.0.mlp.up_proj.lora_embedding_B": np.ones((48, 4))},
            UnsupportedModelError,
            "plain changes of tokens' alone",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    given: dict[str, Any],
    error: type[HeddleError],
    problem: str,
    base: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "1,000" in problem:
        monkeypatch.setattr("heddle.extensions.lora.wholes.MOST_VALUES", 1000)
    others = tensors(DOWN) | {name: one.astype(np.float32) for name, one in given.items()}
    with pytest.raises(error, match=problem):
        read_adapter(write_peft(tmp_path / "x", others), base)


def test_a_changed_table_that_is_not_the_models_is_refused(
    base: Checkpoint, tmp_path: Path
) -> None:
    """PEFT saves the matrix beside its change: the adapter was trained with another one."""
    given = pair(4, 32, 32, "lm_head")
    state = MODEL.state()["lm_head.weight"]
    given["base_model.model.lm_head.base_layer.weight"] = state
    found = read_adapter(write_peft(tmp_path / "same", given), base)
    assert list(found.changes) == ["output"]
    given["base_model.model.lm_head.base_layer.weight"] = -state
    with pytest.raises(UnsupportedModelError, match="another matrix than lm_head"):
        read_adapter(write_peft(tmp_path / "other", given), base)


LENGTHS = f"base_model.model.{UP}.lora_magnitude_vector"


@pytest.mark.parametrize(
    ("given", "use_dora", "problem"),
    [
        ({}, True, r"has no lora_magnitude_vector beside it"),
        ({LENGTHS: np.ones(48, np.float32)}, False, r"has a lora_magnitude_vector beside it"),
        ({LENGTHS: np.ones(47, np.float32)}, True, r"has shape \(47,\); the 48 rows"),
        ({LENGTHS: np.full(48, np.nan, np.float32)}, True, "infinite or NaN"),
        ({LENGTHS: np.full(48, 3e38, np.float32)}, True, "no factor makes one of the other"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    given: dict[str, Any], use_dora: bool, problem: str, base: Checkpoint, tmp_path: Path
) -> None:
    adapter = write_peft(tmp_path / "x", tensors() | given, use_dora=use_dora)
    with pytest.raises(ModelFileError, match=problem):
        read_adapter(adapter, base)


@pytest.mark.parametrize(
    ("model", "module"),
    [
        (gpt2, "transformer.h.0.attn.c_attn"),
        (falcon, "transformer.h.0.self_attention.query_key_value"),
        (bloom, "transformer.h.0.self_attention.query_key_value"),
    ],
)
def test_joined_matrices_are_refused(model: Any, module: str, tmp_path: Path) -> None:
    adapter = write_peft(tmp_path / "x", pair(4, 96, 32, module))
    with (
        open_checkpoint(model.MODELS[0].write_folder(tmp_path / "base")) as base,
        pytest.raises(UnsupportedModelError, match="joined, transposed or by group"),
    ):
        read_adapter(adapter, base)


def test_matrices_of_recurrences_need_an_adapter_of_their_format(tmp_path: Path) -> None:
    model = qwen3_next.MODELS[0]
    with open_checkpoint(model.write(tmp_path / "base.gguf")) as base:
        name = next(one for one in base.tensors if one.endswith("mixer.output.weight"))
        rows, columns = base.tensors[name].shape
        layer = name.split(".")[1]
        module = f"model.layers.{layer}.linear_attn.out_proj"
        adapter = write_peft(tmp_path / "x", pair(4, rows, columns, module))
        with pytest.raises(UnsupportedModelError, match="adapters of another format"):
            read_adapter(adapter, base)


def test_latent_attention_needs_an_adapter_of_its_format(tmp_path: Path) -> None:
    model = deepseek_v2.MODELS[0]
    with open_checkpoint(model.write(tmp_path / "base.gguf")) as base:
        rows, columns = base.tensors["layers.0.mlp.up.weight"].shape
        adapter = write_peft(tmp_path / "x", pair(4, rows, columns, UP))
        with pytest.raises(UnsupportedModelError, match="takes adapters of its own format only"):
            read_adapter(adapter, base)


@pytest.mark.parametrize(
    ("model", "module", "name", "problem"),
    [
        (bailing_moe, "lm_head", "output.weight", "norm the rows"),
        (deepseek_v2, "model.layers.0.self_attn.kv_b_proj", "", "latent attention by head"),
    ],
)
def test_matrices_that_heddle_has_in_another_form_are_refused(
    model: Any, module: str, name: str, problem: str, tmp_path: Path
) -> None:
    with open_checkpoint(model.MODELS[0].write_folder(tmp_path / "base")) as base:
        rows, columns = base.tensors[name].shape if name else (64, 32)
        adapter = write_peft(tmp_path / "x", pair(4, rows, columns, module))
        with pytest.raises(UnsupportedModelError, match=problem) as caught:
            read_adapter(adapter, base)
    assert caught.value.param == f"{module}.weight"


# --- GGUF ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "error", "field", "problem"),
    [
        ({"general__type": None}, ModelFileError, "general.type", "is no adapter"),
        ({"general__type": "model"}, ModelFileError, "general.type", "is 'model', not 'adapter'"),
        ({"adapter__type": None}, ModelFileError, "adapter.type", "must be a string, got None"),
        ({"adapter__type": "dora"}, UnsupportedModelError, "adapter.type", "'dora' is not supp"),
        ({"general__architecture": None}, ModelFileError, "general.architecture", "string"),
        *(
            (
                {"general__architecture": other},
                UnsupportedModelError,
                "general.architecture",
                f"architecture '{other}'",
            )
            for other in ("gemma3", "none")
        ),
        (
            {"adapter__lora__alpha": float("nan")},
            ModelFileError,
            "adapter.lora.alpha",
            "must be a float, got nan",
        ),
        ({"adapter__lora__alpha": 8}, ModelFileError, "adapter.lora.alpha", "must be a float"),
        (
            {"adapter__alora__invocation_tokens": np.array([1], np.uint32)},
            UnsupportedModelError,
            "adapter.alora.invocation_tokens",
            "aLoRA",
        ),
    ],
)
def test_other_gguf_files_are_refused(
    metadata: dict[str, object],
    error: type[HeddleError],
    field: str,
    problem: str,
    base: Checkpoint,
    tmp_path: Path,
) -> None:
    given = gguf_tensors(MODEL, changes_of(MODEL))
    with pytest.raises(error, match=problem) as caught:
        read_adapter(write_gguf_adapter(tmp_path / "x.gguf", MODEL, given, **metadata), base)
    assert caught.value.param == field


def test_a_gguf_adapter_of_another_architecture_is_refused_for_gguf(tmp_path: Path) -> None:
    """Of one family, but the rows of its queries have another order."""
    given = gguf_tensors(MODEL, changes_of(MODEL))
    adapter = write_gguf_adapter(tmp_path / "x.gguf", MODEL, given, general__architecture="qwen2")
    with (
        open_checkpoint(MODEL.write(tmp_path / "base.gguf")) as base,
        pytest.raises(UnsupportedModelError, match=r"'qwen2', and .* has 'llama'"),
    ):
        read_adapter(adapter, base)


@pytest.mark.parametrize(
    ("tensor", "error", "problem"),
    [
        ("output_norm.weight", UnsupportedModelError, "lora_a and .*lora_b alone"),
        ("token_embd.weight.lora_a", UnsupportedModelError, "hidden states are multiplied with"),
        ("blk.0.ffn_up_exps.weight.lora_a", ModelFileError, "has no matrix of this name"),
        ("blk.0.nothing.weight.lora_a", ModelFileError, "has no matrix of this name"),
        ("blk.0.attn_norm.weight.lora_a", UnsupportedModelError, "it is no matrix"),
    ],
)
def test_other_tensors_of_gguf_are_refused(
    tensor: str, error: type[HeddleError], problem: str, base: Checkpoint, tmp_path: Path
) -> None:
    given = [Tensor.of(tensor, np.ones((4, 32), np.float32))]
    if tensor.endswith("_a"):
        given.append(Tensor.of(f"{tensor[:-1]}b", np.ones((32, 4), np.float32)))
    with pytest.raises(error, match=problem):
        read_adapter(write_gguf_adapter(tmp_path / "x.gguf", MODEL, given), base)


def test_types_without_a_decoder_are_refused(base: Checkpoint, tmp_path: Path) -> None:
    given = [
        Tensor.random("blk.0.ffn_up.weight.lora_a", TensorType.I16, (4, 32), 1),
        Tensor.random("blk.0.ffn_up.weight.lora_b", TensorType.F32, (48, 4), 1),
    ]
    with pytest.raises(UnsupportedModelError, match=r"lora_a of type I16 is not supported"):
        read_adapter(write_gguf_adapter(tmp_path / "x.gguf", MODEL, given), base)


# --- places --------------------------------------------------------------------------------------


def test_what_is_no_adapter_is_refused(base: Checkpoint, tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "adapter", tensors())
    weights = folder / "adapter_model.safetensors"
    other = weights.rename(folder / "other.safetensors")
    with pytest.raises(ModelSourceError, match=r"has no adapter_model.safetensors; fetch"):
        read_adapter(folder, base)
    with pytest.raises(ModelSourceError, match="give the folder that has"):
        read_adapter(other, base)
    with pytest.raises(ModelSourceError, match="it is the folder of a model"):
        read_adapter(base.path, base)
    with pytest.raises(ModelSourceError, match=r"has no adapter_config.json; give a folder"):
        read_adapter(tmp_path, base)
    for missing in (tmp_path / "none", str(tmp_path / "none.gguf"), "./none", "\0"):
        with pytest.raises(ModelSourceError, match="does not exist"):
            read_adapter(missing, base)
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ModelFileError, match="is not a GGUF file"):
        read_adapter(tmp_path / "text.gguf", base)


def test_a_pickle_is_refused_with_advice(base: Checkpoint, tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "adapter", tensors())
    pickle = (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    for place in (folder, pickle):
        with pytest.raises(UnsupportedModelError, match=r"is a pickle.*save_pretrained\('NEW'\)"):
            read_adapter(place, base)


# --- any content ---------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["LORA", "none", "q_proj", ".*", "(a|b)"]),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=6), one, max_size=3),
    max_leaves=6,
)
FIELDS = [*peft_config(), "use_rslora", "rank_pattern", "alpha_pattern", "use_dora"]
ANY = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_or_refuse(place: Path, base: Checkpoint) -> None:
    try:
        found = read_adapter(place, base)
    except HeddleError as error:
        assert error.message
        assert error.param
    else:
        assert all(np.isfinite(one.b).all() for one in found.changes.values())


@ANY
@given(changes=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_any_config_is_read_or_refused(
    changes: dict[str, object], base: Checkpoint, tmp_path: Path
) -> None:
    read_or_refuse(write_peft(tmp_path / "x", tensors(), **changes), base)


@ANY
@given(
    name=st.sampled_from([LORA_A, LORA_B, "x", f"{LORA_A}.weight", "model.norm.lora_A.weight"]),
    dtype=st.sampled_from(["F32", "F16", "BF16", "I8", "F8_E4M3", "x"]),
    shape=st.lists(st.sampled_from([0, 1, 2, 4, 32, 48, 1 << 40, -1]), max_size=3),
    offsets=st.lists(st.integers(-8, 2048), min_size=2, max_size=2),
)
def test_any_header_is_read_or_refused(
    name: str,
    dtype: str,
    shape: list[int],
    offsets: list[int],
    base: Checkpoint,
    tmp_path: Path,
) -> None:
    folder = write_peft(tmp_path / "x", tensors())
    sound = {
        LORA_A: {"dtype": "F32", "shape": [4, 32], "data_offsets": [0, 512]},
        LORA_B: {"dtype": "F32", "shape": [48, 4], "data_offsets": [512, 1280]},
    }
    header = sound | {name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}
    write_raw_safetensors(folder / "adapter_model.safetensors", header, bytes(1280))
    read_or_refuse(folder, base)


SOUND = gguf_bytes(gguf_metadata(MODEL), gguf_tensors(MODEL, changes_of(MODEL, modules=[UP])))


@ANY
@given(place=st.integers(0, len(SOUND) - 1), value=st.integers(0, 255), end=st.integers(0, 99))
def test_any_damaged_gguf_file_is_read_or_refused(
    place: int, value: int, end: int, base: Checkpoint, tmp_path: Path
) -> None:
    content = bytearray(SOUND)
    content[place] = value
    (tmp_path / "x.gguf").write_bytes(content[: len(content) - max(0, end - 50)])
    read_or_refuse(tmp_path / "x.gguf", base)
