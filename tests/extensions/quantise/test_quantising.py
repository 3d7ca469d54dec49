"""`heddle quantize`, `--quantize` and `heddle imatrix`, over tiny models."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from test_logits import last_logits

from gguf_writer import Tensor
from heddle.cli import run
from heddle.config import EngineConfig
from heddle.errors import ModelFileError, ModelSourceError, OutOfMemoryError
from heddle.executors.cpu.load import load
from heddle.extensions.quantise import quantising
from heddle.extensions.quantise.imatrix import InputSums, read_imatrix, write_imatrix
from heddle.extensions.quantise.importance import input_sums
from heddle.extensions.quantise.quantising import quantise_file
from heddle.extensions.reference.ops import ReferenceOps, route
from heddle.loading.load import load_model
from heddle.weights.formats import open_checkpoint
from heddle.weights.gguf.file import GGUFFile
from heddle.weights.mix import Mix
from heddle.weights.progress import Silent
from heddle.weights.tensor_types import TensorType, dequantize
from models.tiny.base import EPS, TOKENS
from models.tiny.llama import TinyLlama
from models.tiny.qwen3_moe import MODELS as MIXTURES
from models.tiny_encoder import write_json

if TYPE_CHECKING:
    from pathlib import Path


WIDE = TinyLlama(
    "wide", heads=4, kv_heads=2, head_dim=64, tied=False, layers=2, width=256, ffn_width=288
)
"""Rows of 256 and of 288 values: the second are not whole super-blocks."""


MIXTURE = MIXTURES[0]
MATRICES = ("gate", "up", "down")


def logits(path: Path, quantize: str = "none") -> np.ndarray:
    """Logits after each of TOKENS on the CPU."""
    with open_checkpoint(path) as checkpoint:
        config = EngineConfig(slots=1, threads=2, context=len(TOKENS), quantize=quantize)
        executor = load(checkpoint, config)
        found = last_logits(executor, TOKENS, range(1, len(TOKENS) + 1))
        executor.close()
    return found


@pytest.mark.parametrize("name", ["q4_k", "mxfp4"])
def test_a_load_gives_the_bits_of_a_quantised_file(name: str, tmp_path: Path) -> None:
    source, target = WIDE.write(tmp_path / "wide.gguf"), tmp_path / "new.gguf"
    quantise_file(source, target, Mix.named(name))
    found = logits(source, name)
    assert np.array_equal(found, logits(target))
    assert not np.array_equal(found, logits(source))


def test_a_file_has_the_types_of_the_mix_and_all_metadata(tmp_path: Path) -> None:
    source, target = WIDE.write(tmp_path / "wide.gguf"), tmp_path / "new.gguf"
    written = quantise_file(source, target, Mix.named("q4_k"))
    with GGUFFile.open(source) as old, GGUFFile.open(target) as new:
        types = {name: tensor.type.name for name, tensor in new.tensors.items()}
        assert list(types) == list(old.tensors)
        assert written.nbytes == sum(tensor.nbytes for tensor in new.tensors.values())
        metadata = dict(new.metadata)
        assert metadata.pop("general.quantization_version") == 2
        assert metadata.pop("general.file_type") == 14
        assert metadata == dict(old.metadata)
    assert types["token_embd.weight"] == types["output.weight"] == "Q6_K"
    assert types["blk.1.attn_q.weight"] == types["blk.1.ffn_up.weight"] == "Q4_K"
    assert types["blk.1.ffn_down.weight"] == "Q5_0"
    assert types["blk.1.attn_norm.weight"] == "F32"


def test_a_file_keeps_the_pooling_of_a_folder(tmp_path: Path) -> None:
    folder, target = WIDE.write_folder(tmp_path / "folder"), tmp_path / "new.gguf"
    write_json(folder / "modules.json", [{"path": "1_Pooling", "type": "x.Pooling"}])
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    quantise_file(folder, target, Mix.named("q8_0"))
    with open_checkpoint(target) as checkpoint:
        assert checkpoint.hyperparameters.get("pooling") == "last"


def test_a_quantised_matrix_stays_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = WIDE.write_folder(tmp_path / "folder")
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    assert quantise_file(source, first, Mix.named("q8_0")).kept == ""
    assert quantise_file(first, second, Mix.named("q4_k")).kept == "16 of type Q8_0"
    with GGUFFile.open(first) as old, GGUFFile.open(second) as new:
        name = "blk.0.ffn_up.weight"
        assert np.array_equal(old.data(name), new.data(name))
    model = load_model(first, EngineConfig(slots=1, kv_cache=1 << 20, quantize="q4_k"))
    model.close()
    assert model.info.quantisation == "Q8_0"
    assert "already quantised stay as they are: 16 of type Q8_0" in caplog.text


def test_a_damaged_weight_leaves_no_file(tmp_path: Path) -> None:
    bad = np.full((256, 288), np.inf, np.float32)
    source = WIDE.write(tmp_path / "wide.gguf", [Tensor.of("blk.9.ffn_down.weight", bad)])
    with pytest.raises(ModelFileError, match=r"blk\.9\.ffn_down\.weight has infinite or NaN"):
        quantise_file(source, tmp_path / "new.gguf", Mix.named("q4_0"))
    assert [file.name for file in tmp_path.iterdir()] == ["wide.gguf"]


def test_a_full_disk_is_refused_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage())
    source, progress = WIDE.write(tmp_path / "wide.gguf"), Reports()
    with pytest.raises(ModelSourceError, match="and its disk has 0 MB free"):
        quantise_file(source, tmp_path / "new.gguf", Mix.named("q4_0"), progress=progress)
    assert progress.seen == []


class Reports(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def update(self, done: int) -> None:
        self.seen.append(done)


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    source, progress = WIDE.write(tmp_path / "wide.gguf"), Reports()
    written = quantise_file(source, tmp_path / "new.gguf", Mix.named("q4_0"), progress=progress)
    assert (progress.seen[0], progress.seen[-1]) == (0, written.nbytes)
    assert progress.seen == sorted(progress.seen)


def test_too_little_memory_is_refused_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = WIDE.write(tmp_path / "wide.gguf")
    with open_checkpoint(source) as checkpoint:
        largest = max(one.nbytes for one in checkpoint.tensors.values())
    free = [largest]  # the new one takes some, too
    monkeypatch.setattr(quantising, "available_bytes", lambda: free[0])
    with pytest.raises(OutOfMemoryError, match="the largest tensor needs"):
        quantise_file(source, tmp_path / "new.gguf", Mix.named("q8_0"))
    assert [file.name for file in tmp_path.iterdir()] == ["wide.gguf"]
    free[0] = 3 * largest
    quantise_file(source, tmp_path / "new.gguf", Mix.named("q8_0"))


def test_input_sums_are_those_of_what_matrices_read(tmp_path: Path) -> None:
    """The first layer's queries read the normalised embedding."""
    with WIDE.checkpoint(tmp_path) as checkpoint:
        sums = input_sums(checkpoint, TOKENS, chunk=5)
    state = WIDE.state()
    rows = state["model.embed_tokens.weight"][TOKENS]
    norm = state["model.layers.0.input_layernorm.weight"]
    read = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + EPS) * norm
    expected = (read.astype(np.float64) ** 2).sum(axis=0)
    assert sums["layers.0.attention.q.weight"].counts.tolist() == [len(TOKENS)]
    assert np.allclose(sums["layers.0.attention.q.weight"].squares, [expected], rtol=1e-3)
    assert sums["layers.1.mlp.down.weight"].squares.shape == (1, 288)
    assert sums["output.weight"].squares.shape == (1, 256)
    assert sums["output.weight"].squares.all()


def test_an_expert_is_measured_by_the_tokens_that_chose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    compute = ReferenceOps.experts

    def spy(ops: Any, x: np.ndarray, logits: np.ndarray, weights: Any, spec: Any) -> Any:
        seen.append((x, route(logits, spec)[0]))
        return compute(ops, x, logits, weights, spec)

    monkeypatch.setattr(ReferenceOps, "experts", spy)
    with MIXTURE.checkpoint(tmp_path) as checkpoint:
        sums = input_sums(checkpoint, TOKENS, chunk=len(TOKENS))
    states, chosen = seen[0]
    has_chosen = [(chosen == expert).any(axis=-1) for expert in range(MIXTURE.experts)]
    gate, up, down = (sums[f"layers.0.mlp.experts.{part}.weight"] for part in MATRICES)
    counts = [int(tokens.sum()) for tokens in has_chosen]
    assert gate.counts.tolist() == up.counts.tolist() == down.counts.tolist() == counts
    expected = [(states[tokens].astype(np.float64) ** 2).sum(axis=0) for tokens in has_chosen]
    assert np.allclose(gate.squares, expected)
    assert np.array_equal(gate.squares, up.squares)
    assert down.squares.shape == (MIXTURE.experts, MIXTURE.expert_width)


def test_each_expert_is_quantised_with_its_own_importance(tmp_path: Path) -> None:
    """A stack's experts are quantised as if each were a matrix of its own."""
    source, target = MIXTURE.write(tmp_path / "m.gguf"), tmp_path / "new.gguf"
    name = "blk.1.ffn_gate_exps.weight"
    random = np.random.default_rng(5).random((MIXTURE.experts, MIXTURE.width))
    importance = (random**4).astype(np.float32)
    quantise_file(source, target, Mix.named("q4_0"), {name: importance})
    with GGUFFile.open(source) as old, GGUFFile.open(target) as new:
        exact = dequantize(old.data(name), TensorType.F32, old.tensors[name].shape)
        found = new.data(name).reshape(MIXTURE.experts, -1)
        for expert, matrix in enumerate(exact):
            alone = Tensor.of("blk.9.ffn_up.weight", matrix)
            source = MIXTURE.write(tmp_path / "one.gguf", [alone])
            quantise_file(source, target, Mix.named("q4_0"), {alone.name: importance[[expert]]})
            with GGUFFile.open(target) as one:
                assert np.array_equal(found[expert], one.data(alone.name))


def test_an_importance_matrix_is_read_back_as_means(tmp_path: Path) -> None:
    squares = np.array([[4.0, 0.0, 12.0], [0.0, 0.0, 0.0]])
    path = tmp_path / "imatrix.gguf"
    sums = {"a.weight": InputSums(squares, np.array([4, 0]))}
    write_imatrix(path, sums, dataset="t", chunks=1, chunk_size=4)
    with GGUFFile.open(path) as file:
        shapes = [file.tensors[f"a.weight.{part}"].shape for part in ("in_sum2", "counts")]
    assert shapes == [(2, 3), (2, 1)]
    found, unused = read_imatrix(path)["a.weight"]
    assert found.tolist() == pytest.approx([1.0, 4e-6 / 3, 3.0])
    assert unused.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ModelFileError, match=r"is not an importance matrix: general\.type is None"):
        read_imatrix(WIDE.write(tmp_path / "wide.gguf"))


def test_the_commands_write_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, text = WIDE.write_folder(tmp_path / "folder"), tmp_path / "text"
    text.write_text("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    matrix, plain, weighted = (tmp_path / name for name in ("i.gguf", "p.gguf", "w.gguf"))
    assert run(["imatrix", str(folder), str(text), "-o", str(matrix)]) == 0
    assert run(["quantize", str(folder), str(plain), "--type", "q4_k"]) == 0
    assert "MB of tensors" in capsys.readouterr().out
    more = ["--imatrix", str(matrix), "--threads", "1"]
    assert run(["quantize", str(folder), str(weighted), "--type", "q4_k", *more]) == 0
    importance = read_imatrix(matrix)["blk.1.ffn_up.weight"]
    with GGUFFile.open(plain) as a, GGUFFile.open(weighted) as b:
        name = "blk.1.ffn_up.weight"
        assert a.tensors[name].type is TensorType.Q4_K
        assert not np.array_equal(a.data(name), b.data(name))
    assert importance.shape == (1, 256)


def test_an_importance_matrix_of_tensors_without_names_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, text = WIDE.write_folder(tmp_path / "folder", model_type="ministral"), tmp_path / "text"
    text.write_text("ABC")
    assert run(["imatrix", str(folder), str(text), "-o", str(tmp_path / "i.gguf")]) != 0
    said = capsys.readouterr().err
    assert "model_type 'ministral' cannot be written as GGUF" in said
    assert "computing" not in said
