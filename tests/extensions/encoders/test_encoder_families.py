"""Encoders: vectors and logits as `transformers` computes them, alone and in company."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from devices import HERE
from gguf_writer import Tensor
from heddle import EmbeddingParams, EngineConfig, InvalidRequestError, Pooling
from heddle.engine.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.errors import ContextLengthError, ModelFileError, UnsupportedModelError
from heddle.extensions.encoders.encoder import Encoder
from heddle.extensions.reference.model import ReferenceModel
from heddle.extensions.reference.ops import SequenceCache, SequenceChunk
from heddle.models.blocks import Attention
from heddle.models.build import build
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny_encoders import BART, MODELS, SEPARATOR, TEXTS, TinyEncoder

if TYPE_CHECKING:
    from pathlib import Path

BY_NAME = {model.name: model for model in MODELS}
CASES = [
    (one, form) for one in MODELS for form in ("folder", "gguf") if form == "folder" or one.gguf
]
every_case = pytest.mark.parametrize(("model", "form"), CASES, ids=str)
CONFIG = EngineConfig(slots=3, threads=2, context=48)


def stored(model: TinyEncoder, form: str, folder: Path) -> Path:
    return model.write(folder / "tiny.gguf") if form == "gguf" else model.write_folder(folder / "t")


def opened(model: TinyEncoder, form: str, folder: Path) -> GGUFCheckpoint | HuggingFaceCheckpoint:
    path = stored(model, form, folder)
    return GGUFCheckpoint.open(path) if form == "gguf" else HuggingFaceCheckpoint.open(path)


def wanted(model: TinyEncoder) -> list[str]:
    return ["logits"] if model.classifies else ["mean", "cls", "last"]


def params_of(model: TinyEncoder, pooling: str) -> EmbeddingParams:
    named = None if model.classifies else Pooling(pooling)
    return EmbeddingParams(named, unit_length=not model.classifies)


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """1 less the cosine."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(1 - found @ expected / np.linalg.norm(found) / np.linalg.norm(expected))


@every_case
def test_float32_agrees_with_transformers(model: TinyEncoder, form: str, tmp_path: Path) -> None:
    with opened(model, form, tmp_path) as checkpoint:
        reference = ReferenceModel(checkpoint)
    for number, text in enumerate(TEXTS):
        states = reference.states([SequenceChunk(SequenceCache(), 0, text)])
        for pooling in wanted(model):
            rows = {
                "mean": states.mean(axis=0),
                "last": states[-1],
                "logits": states[model.read_row],
            }
            found, expected = rows.get(pooling, states[0]), model.vectors(pooling)[number]
            if not model.classifies:
                found = found / np.linalg.norm(found)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
            assert difference(found, expected) < 1e-9


@every_case
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_vectors_agree_with_transformers(
    model: TinyEncoder, form: str, device: str, tmp_path: Path
) -> None:
    """The cache keeps keys and values in f16."""
    path = str(stored(model, form, tmp_path))
    with Engine.load(path, replace(CONFIG, device=device)) as engine:
        for pooling in wanted(model):
            for text, expected in zip(TEXTS, model.vectors(pooling), strict=True):
                found = np.array(engine.embed(text, params_of(model, pooling)).vector)
                assert len(found) == len(expected)
                np.testing.assert_allclose(found, expected, atol=3e-3)
                assert difference(found, expected) < 1e-6


@pytest.mark.parametrize("name", ["bert-classes", "modernbert-mean-classes", BART.name])
@pytest.mark.parametrize("device", [one for one in HERE if one not in ("cpu", "reference")])
def test_other_devices_agree_with_transformers_alone_and_in_company(
    name: str, device: str, tmp_path: Path
) -> None:
    model, params = BY_NAME[name], params_of(BY_NAME[name], "logits")
    path, config = str(stored(model, "folder", tmp_path)), replace(CONFIG, device=device)
    with Engine.load(path, config) as engine:
        alone = [engine.embed(text, params).vector for text in TEXTS]
        waiting = [Collector() for _ in TEXTS]
        engine.submit_many((text, params, one) for text, one in zip(TEXTS, waiting, strict=True))
        assert [one.wait_embedding().vector for one in waiting] == alone
    for found, expected in zip(alone, model.vectors("logits"), strict=True):
        np.testing.assert_allclose(np.array(found), expected, atol=3e-3)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_vector_has_the_same_bits_in_company(model: TinyEncoder, tmp_path: Path) -> None:
    """Whatever the company, the limit of a step, the threads and the instruction level."""
    path, pooling = str(stored(model, "folder", tmp_path)), wanted(model)[0]
    params = params_of(model, pooling)
    found = []
    for settings in ({}, {"batch_tokens": 7}, {"threads": 1}, {"isa": "portable"}):
        with Engine.load(path, replace(CONFIG, **settings)) as engine:
            for texts in (TEXTS, TEXTS[::-1]):
                waiting = [Collector() for _ in texts]
                engine.submit_many(
                    (text, params, one) for text, one in zip(texts, waiting, strict=True)
                )
                vectors = [one.wait_embedding().vector for one in waiting]
                found.append(vectors if texts == TEXTS else vectors[::-1])
            found.append([engine.embed(text, params).vector for text in TEXTS])
    for vectors in found[1:]:
        assert vectors == found[0]


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_a_model_that_reads_first_tokens_gives_the_same_vectors(name: str, tmp_path: Path) -> None:
    """It computes the last feed-forward part for the rows that are read, whichever they are."""
    model, found = BY_NAME[name], []
    for number in (0, 2):
        keyed = replace(model, keys=model.keys | {"pooling_type": number})
        path = keyed.write(tmp_path / f"{number}.gguf")
        with GGUFCheckpoint.open(path) as checkpoint:
            encoder = build(checkpoint)
        assert isinstance(encoder, Encoder)
        assert encoder.of_first == (number == 2)
        with Engine.load(str(path), CONFIG) as engine:
            assert engine.model.pooling is (Pooling.CLS if number else Pooling.MEAN)
            found.append(
                [
                    engine.embed(text, EmbeddingParams(pooling)).vector
                    for text in TEXTS
                    for pooling in Pooling
                ]
            )
    assert found[0] == found[1]


def test_a_text_may_fill_the_table_of_positions(tmp_path: Path) -> None:
    """RoBERTa's table has 64 rows, the first two of them for padding."""
    path = str(stored(BY_NAME["xlm-roberta"], "folder", tmp_path))
    with Engine.load(path, replace(CONFIG, context=0)) as engine:
        assert engine.model.shape.context == 62
        engine.embed([5] * 62)
        with pytest.raises(ContextLengthError, match="Send at most 62"):
            engine.embed([5] * 63)


def test_a_classifier_names_its_classes(tmp_path: Path) -> None:
    folder = BY_NAME["bert-classes"].write_folder(tmp_path, problem_type="regression")
    with Engine.load(str(folder), CONFIG) as engine:
        model = engine.model
        assert (model.labels, model.problem_type) == (("no", "maybe", "yes"), "regression")
        assert model.pooling is Pooling.CLS
        with pytest.raises(InvalidRequestError, match=r"as a whole .* pooling mean is not"):
            engine.embed(TEXTS[0], EmbeddingParams(Pooling.MEAN))


def test_a_classifier_of_bart_reads_the_last_token(tmp_path: Path) -> None:
    with Engine.load(str(BY_NAME["bart-classes"].write_folder(tmp_path)), CONFIG) as engine:
        assert engine.model.pooling is Pooling.LAST
        with pytest.raises(InvalidRequestError, match=r"as a whole .* pooling cls is not"):
            engine.embed(TEXTS[0], EmbeddingParams(Pooling.CLS))


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_a_folder_of_bart_has_its_table_of_tokens_under_any_name(half: str, tmp_path: Path) -> None:
    model = BY_NAME["bart-classes"]
    name = f"model.{half}.embed_tokens"
    renamed = replace(model, folder_name=lambda own: own.replace("model.shared", name))
    with renamed.checkpoint(tmp_path) as checkpoint:
        states = ReferenceModel(checkpoint).states([SequenceChunk(SequenceCache(), 0, TEXTS[0])])
    np.testing.assert_allclose(states[-1], model.vectors("logits")[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("part", ["dense", "out_proj"])
def test_bart_without_its_classifier_is_refused(part: str, tmp_path: Path) -> None:
    lacking = replace(
        BY_NAME["bart-classes"],
        folder_name=lambda own: own.replace(f"classification_head.{part}", "other"),
    )
    with (
        pytest.raises(ModelFileError, match=f"tensor classification_head.{part}.weight is missing"),
        lacking.checkpoint(tmp_path) as checkpoint,
    ):
        ReferenceModel(checkpoint)


def test_a_gguf_file_that_ranks_has_one_class(tmp_path: Path) -> None:
    """llama.cpp writes no names of classes where there is one."""
    keys: dict[str, object] = {"pooling_type": 4, "classifier.output_labels": None}
    model = replace(BY_NAME["bert-classes"], keys=keys)
    path = model.write(tmp_path / "tiny.gguf")
    with GGUFCheckpoint.open(path) as checkpoint:
        assert checkpoint.hyperparameters.get("labels") == ["LABEL_0"]


@pytest.mark.parametrize(
    ("name", "changes", "labels"),
    [
        ("bert", {"architectures": ["BertModel"]}, None),
        ("bert", {"id2label": None}, ["LABEL_0", "LABEL_1"]),
        ("bert", {"id2label": None, "num_labels": 1}, ["LABEL_0"]),
        ("bart", {"id2label": None}, ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ("bart", {"id2label": None, "num_labels": 1}, ["LABEL_0"]),
    ],
)
def test_classes_without_names(
    name: str, changes: dict[str, object], labels: list[str] | None, tmp_path: Path
) -> None:
    folder = BY_NAME[f"{name}-classes"].write_folder(tmp_path, **changes)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        assert checkpoint.hyperparameters.get("labels") == labels


def test_models_saved_alone_have_no_prefix(tmp_path: Path) -> None:
    """sentence-transformers saves them so. The first checkpoints call weights of norms gamma."""

    def old(name: str) -> str:
        bare = name.removeprefix("bert.")
        is_norm = "LayerNorm" in bare
        return bare.replace("weight", "gamma").replace("bias", "beta") if is_norm else bare

    found = []
    for number, model in enumerate((BY_NAME["bert"], replace(BY_NAME["bert"], folder_name=old))):
        with HuggingFaceCheckpoint.open(model.write_folder(tmp_path / str(number))) as checkpoint:
            found.append(ReferenceModel(checkpoint).embedding(TEXTS[0], Pooling.CLS))
    np.testing.assert_array_equal(found[0], found[1])


def test_windows_are_on_both_sides_and_skip_each_third_layer(tmp_path: Path) -> None:
    """The keys of `transformers` 5, and those before, give the same model."""
    newer = {
        "layer_types": ["full_attention", *["sliding_attention"] * 2] * 2,
        "rope_parameters": {
            "full_attention": {"rope_theta": 160000.0},
            "sliding_attention": {"rope_theta": 10000.0},
        },
    }
    newer["layer_types"] = newer["layer_types"][:5]  # type: ignore[index]
    found = []
    for number, changes in enumerate(({}, newer)):
        folder = BY_NAME["modernbert"].write_folder(tmp_path / str(number), **changes)
        with HuggingFaceCheckpoint.open(folder) as checkpoint:
            found.append(build(checkpoint))
    assert found[0] == found[1]
    mixers = [layer.mixer for layer in found[0].layers]
    assert [mixer.spec.window for mixer in mixers] == [0, 8, 8, 0, 8]  # type: ignore[union-attr]


def test_positions_of_gte_are_scaled_as_its_code_does(tmp_path: Path) -> None:
    """A larger base, and one factor for all pairs."""
    scaling = {"type": "ntk", "factor": 8.0}
    folder = BY_NAME["gte"].write_folder(tmp_path, rope_theta=20000, rope_scaling=scaling)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        mixer = build(checkpoint).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    assert mixer.rope.base == 160_000
    np.testing.assert_allclose(mixer.rope.factors, [8 ** (2 / 16)] * 8)


def test_norms_of_queries_are_refused(tmp_path: Path) -> None:
    """Jina's models of code have them."""
    model = BY_NAME["jina-bert-v2"]
    norm = Tensor.of("blk.0.attn_q_norm.weight", np.ones(48, np.float32))
    path = model.write(tmp_path / "tiny.gguf", [norm])
    with (
        pytest.raises(UnsupportedModelError, match="layer norms of queries and keys"),
        GGUFCheckpoint.open(path) as checkpoint,
    ):
        ReferenceModel(checkpoint)


@pytest.mark.parametrize("token", ["[SEP]", "[X]"])
def test_the_separator_is_that_of_the_tokenizer(token: str, tmp_path: Path) -> None:
    """Without one, all tokens are of the first segment."""
    folder = BY_NAME["bert"].write_folder(tmp_path)
    tokenizer = (folder / "tokenizer.json").read_text().replace("[SEP]", token)
    (folder / "tokenizer.json").write_text(tokenizer)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        model = build(checkpoint)
    assert isinstance(model, Encoder)
    assert model.separator == (SEPARATOR if token == "[SEP]" else -1)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("nomic-bert-moe", {"n_layer": 10**12}, "n_layer is 1000000000000"),
        ("modernbert", {"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000"),
        ("bert-classes", {"id2label": None, "num_labels": 10**12}, "num_labels must be 1 to"),
        ("bert-classes", {"id2label": None, "num_labels": 0}, "num_labels must be 1 to"),
        ("xlm-roberta", {"pad_token_id": 10**12}, "the table of positions has 64 rows"),
        ("bart-classes", {"encoder_layers": 10**12}, "encoder_layers is 1000000000000"),
        ("bart-classes", {"decoder_layers": 10**12}, "decoder_layers is 1000000000000"),
        ("bart-classes", {"decoder_layers": 0}, "decoder_layers must be a positive whole number"),
        ("bart-classes", {"d_model": 10**12, "scale_embedding": True}, "d_model is 1000"),
        ("bart-classes", {"id2label": None, "num_labels": 10**12}, "num_labels must be 1 to"),
        ("bart-classes", {"encoder_attention_heads": None}, "encoder_attention_heads must be a"),
        ("bart-classes", {"decoder_start_token_id": 40}, "decoder_start_token_id is 40, but there"),
        ("bart-classes", {"decoder_start_token_id": -1}, "decoder_start_token_id must be a whole"),
        (
            "bart-classes",
            {"encoder_attention_heads": 5, "decoder_attention_heads": 5},
            "encoder_attention_heads is 5, which does not divide d_model 48",
        ),
    ],
)
def test_mad_numbers_are_refused_before_anything_has_their_size(
    name: str, changes: dict[str, object], problem: str, tmp_path: Path
) -> None:
    folder = BY_NAME[name].write_folder(tmp_path, **changes)
    with (
        pytest.raises(ModelFileError, match=problem),
        HuggingFaceCheckpoint.open(folder) as checkpoint,
    ):
        build(checkpoint)


@pytest.mark.parametrize("name", ["nomic-bert-moe", "modernbert"])
def test_a_gguf_file_may_claim_any_number_of_layers(name: str, tmp_path: Path) -> None:
    model = BY_NAME[name]
    path = replace(model, keys=model.keys | {"block_count": 2**31}).write(tmp_path / "t.gguf")
    with (
        pytest.raises(ModelFileError, match="block_count is 2147483648"),
        GGUFCheckpoint.open(path) as checkpoint,
    ):
        build(checkpoint)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "'relative_key' is not supported"),
        ("bert", {"is_decoder": True}, "is_decoder True is not supported; supported: False"),
        ("electra", {"position_embedding_type": "relative_key"}, "'relative_key' is not supported"),
        ("xlm-roberta", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ("distilbert", {"activation": "silu"}, "activation 'silu' is not supported"),
        ("bert", {"feed_forward_type": "glu"}, "feed_forward_type 'glu' is not supported"),
        ("nomic-bert", {"prenorm": True}, "prenorm True is not supported; supported: False"),
        ("nomic-bert-moe", {"num_shared_experts": 1}, "num_shared_experts 1 is not supported"),
        ("gte", {"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.9}}, "mixed_b is not"),
        ("gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm' is not supported"),
        ("modernbert", {"classifier_activation": "mish"}, "activation 'mish' is not supported"),
        ("modernbert", {"classifier_activation": []}, r"activation \[\] is not supported"),
        ("bart-classes", {"activation_function": "mish"}, "activation_function 'mish' is not"),
        ("bart-classes", {"activation_function": []}, r"activation_function \[\] is not"),
        ("bart-classes", {"normalize_before": True}, "normalize_before True is not supported"),
        ("bart-classes", {"normalize_embedding": False}, "normalize_embedding False is not"),
        ("bart-classes", {"add_final_layer_norm": True}, "add_final_layer_norm True is not"),
        ("bart-classes", {"static_position_embeddings": True}, "static_position_embeddings True"),
        ("bart-classes", {"scale_embedding": "yes"}, "scale_embedding 'yes' is not supported"),
        ("bart-classes", {"decoder_attention_heads": 4}, "decoder_attention_heads 4 is not"),
        ("bart-classes", {"decoder_ffn_dim": 32}, "decoder_ffn_dim 32 is not supported; .* 64"),
        ("bart-classes", {"architectures": ["BartModel"]}, r"\['BartModel'\] is not supported"),
        ("bart-classes", {"architectures": None}, "architectures None is not supported"),
    ],
)
def test_what_changes_the_forward_pass_is_refused(
    name: str, changes: dict[str, object], problem: str, tmp_path: Path
) -> None:
    folder = BY_NAME[name].write_folder(tmp_path, **changes)
    with (
        pytest.raises(UnsupportedModelError, match=problem),
        HuggingFaceCheckpoint.open(folder) as checkpoint,
    ):
        build(checkpoint)
