"""Tiny random encoders, with vectors that `transformers` computed once (make_vectors.py).

`data/encoders/*.json` has, for each model, the shapes of its tensors under the names of
`transformers`, the vectors of TEXTS by pooling, and the logits of a classifier. Weights come from
NumPy's legacy generator, whose stream is frozen for good.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from folder_writer import write_safetensors, write_tokenizer
from gguf_writer import Tensor, write_gguf
from heddle.text.tokenizer.vocabulary import TokenType
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

DATA = Path(__file__).parent / "data/encoders"
VOCABULARY = 40
SEPARATOR = 3
TEXTS = (
    [2, 17, 4, 30, 30, 8, 25, SEPARATOR, 9, 12, 31, 5, 22, SEPARATOR],
    [2, *(4 + i * i % 31 for i in range(43)), SEPARATOR],
    [2, 9, SEPARATOR],
)
"""A pair, a text that is longer than a page and than both sides of a window, and a short text."""
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class TinyEncoder:
    """One model.

    Attributes:
        name: names it in the data.
        config: config.json without `architectures`.
        classifies: whether it is a sequence classifier.
        gguf: the architecture of its GGUF file; empty: llama.cpp has none.
        gguf_names: parts of tensors' names in GGUF, by those of `transformers`.
        keys: further metadata of the GGUF file, after the architecture's name.
        folder_config: config.json in a folder, if the hub's files have another one.
        folder_name: the name in a folder of the tensor that `transformers` calls so.
        fused: parts of names of tensors that folders join, by that of the whole.
    """

    name: str
    config: dict[str, Any]
    classifies: bool = False
    gguf: str = ""
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    keys: dict[str, object] = field(default_factory=dict)
    folder_config: dict[str, Any] = field(default_factory=dict)
    folder_name: Callable[[str], str] = str
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    width: ClassVar[int] = 48

    def __str__(self) -> str:
        return self.name

    @property
    def read_row(self) -> int:
        """The row of a text that a classifier reads. That of BART is its last."""
        return -1 if self.config["model_type"] == "bart" else 0

    @property
    def data(self) -> dict[str, Any]:
        """What `transformers` said of it."""
        found: dict[str, Any] = json.loads((DATA / f"{self.name}.json").read_text())
        return found

    def state(self, shapes: Mapping[str, list[int]] | None = None) -> dict[str, np.ndarray]:
        """Weights by name."""
        shapes = self.data["shapes"] if shapes is None else shapes
        stream = np.random.RandomState(20)
        return {name: _values(stream, name, shapes[name]) for name in sorted(shapes)}

    def stored(self) -> dict[str, np.ndarray]:
        """Weights as a folder has them."""
        state = self.state()
        for whole, parts in self.fused.items():
            for name in [name for name in state if f".{parts[0]}." in name]:
                names = [name.replace(parts[0], part) for part in parts]
                joined = np.concatenate([state.pop(one) for one in names])
                state[name.replace(parts[0], whole)] = joined
        return {self.folder_name(name): values for name, values in state.items()}

    def vectors(self, pooling: str) -> list[np.ndarray]:
        """The vectors of TEXTS by `transformers`: of length 1, or logits as they are."""
        return [np.array(vector) for vector in self.data[pooling]]

    def write_folder(self, folder: Path, **changes: object) -> Path:
        folder.mkdir(exist_ok=True)
        config = (self.folder_config or self.config) | (
            {"id2label": {"0": "no", "1": "maybe", "2": "yes"}} if self.classifies else {}
        )
        kind = "ForSequenceClassification" if self.classifies else "Model"
        config |= {"architectures": [f"X{kind}"]} | changes
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / "model.safetensors", self.stored())
        write_tokenizer(folder / "tokenizer.json", VOCABULARY)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        separator = {"id": SEPARATOR, "content": "[SEP]", "special": True}
        tokenizer["model"]["vocab"] = {
            piece: id for piece, id in tokenizer["model"]["vocab"].items() if id != SEPARATOR
        }
        tokenizer["added_tokens"] = [*tokenizer.get("added_tokens", []), separator]
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        return folder

    def checkpoint(self, folder: Path) -> HuggingFaceCheckpoint:
        return HuggingFaceCheckpoint.open(self.write_folder(folder / self.name))

    def metadata(self) -> dict[str, object]:
        get = self.config.get
        keys = {
            "block_count": get("num_hidden_layers", get("n_layers")),
            "context_length": get("max_position_embeddings"),
            "embedding_length": self.width,
            "feed_forward_length": get("intermediate_size", get("hidden_dim")),
            "attention.head_count": get("num_attention_heads", get("n_heads")),
            "attention.layer_norm_epsilon": get("layer_norm_eps", 1e-12),
            "attention.causal": False,
            "vocab_size": VOCABULARY,
        }
        if self.classifies:
            keys |= {"pooling_type": 4, "classifier.output_labels": ["no", "maybe", "yes"]}
        given = {key: value for key, value in (keys | self.keys).items() if value is not None}
        prefixed = {f"{self.gguf}.{key}": value for key, value in given.items()}
        return {
            "general.architecture": self.gguf,
            **prefixed,
            "tokenizer.ggml.seperator_token_id": SEPARATOR,
            "tokenizer.ggml.token_type_count": get("type_vocab_size", 1),
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [chr(ord("A") + id) for id in range(VOCABULARY)],
            "tokenizer.ggml.token_type": np.full(VOCABULARY, TokenType.NORMAL, np.int32),
            "tokenizer.ggml.merges": [],
        }

    def write(self, path: Path, extra: Iterable[Tensor] = ()) -> Path:
        """Write the GGUF file, with the tensors that it has a name for, and `extra` ones."""
        tensors = list(extra)
        for name, values in self.stored().items():
            stored = self._gguf_name(name)
            if stored.endswith("_exps.weight"):
                tensors.append(Tensor.of(stored, self._expert_matrices(name, values)))
            elif stored:
                tensors.append(Tensor.of(stored, self.gguf_values(stored, values)))
        return write_gguf(path, self.metadata(), tensors)

    def _expert_matrices(self, name: str, values: np.ndarray) -> np.ndarray:
        matrices = values.reshape(self.config["num_experts"], -1, self.width)
        return matrices.swapaxes(1, 2).copy() if name.endswith(".w2") else matrices

    def gguf_values(self, stored: str, values: np.ndarray) -> np.ndarray:
        """Positions of padding are left out."""
        first = (
            int(self.config["pad_token_id"]) + 1 if self.config.get("model_type") in ROBERTA else 0
        )
        return values[first:] if stored == "position_embd.weight" else values

    def _gguf_name(self, name: str) -> str:
        name = f"{name}.weight" if name.endswith((".w1", ".w2")) else name
        part, _, kind = name.replace(".parametrizations.weight.original", ".weight").rpartition(".")
        number = next((one for one in part.split(".") if one.isdigit()), None)
        if number is not None:
            part = part.partition(f".{number}.")[2]
        for stored, own in self.gguf_names.items():
            if part == stored or (number is None and part.endswith(f".{stored}")):
                return f"{own}.{kind}" if number is None else f"blk.{number}.{own}.{kind}"
        return ""


ROBERTA = ("roberta", "xlm-roberta", "camembert", "mpnet")


def _values(stream: np.random.RandomState, name: str, shape: list[int]) -> np.ndarray:
    values = stream.standard_normal(shape)
    if len(shape) == 2:
        return (values / np.sqrt(shape[1])).astype(np.float32)
    return (0.2 * values + (1 if name.endswith("weight") else 0)).astype(np.float32)


BERT_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "pooler.dense": "cls",
    "classifier": "cls.output",
}
ROBERTA_NAMES = {
    **BERT_NAMES,
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}
for _name in ("pooler.dense", "classifier"):
    del ROBERTA_NAMES[_name]
DISTIL_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
}

_BERT = COMMON | {"model_type": "bert", "type_vocab_size": 2}
_ROBERTA = COMMON | {"model_type": "xlm-roberta", "type_vocab_size": 1, "pad_token_id": 1}
_ELECTRA = _BERT | {"model_type": "electra", "embedding_size": 32}
_DISTIL = {
    "model_type": "distilbert",
    "vocab_size": VOCABULARY,
    "dim": 48,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 64,
    "max_position_embeddings": 64,
    "activation": "gelu",
    "pad_token_id": 0,
}
_JINA = _BERT | {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
JINA_NAMES = {
    **BERT_NAMES,
    "mlp.gated_layers": "ffn_up",
    "mlp.wo": "ffn_down",
    "mlp.layernorm": "layer_output_norm",
}
_JINA_3 = COMMON | {"model_type": "jina_embeddings_v3", "type_vocab_size": 1, "pad_token_id": 1}
JINA_3_CONFIG: dict[str, Any] = {
    "model_type": "xlm-roberta",
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
}
JINA_3_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "emb_ln": "token_embd_norm",
    "mixer.Wqkv": "attn_qkv",
    "mixer.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "norm2": "layer_output_norm",
}
_MPNET = COMMON | {"model_type": "mpnet", "pad_token_id": 1, "relative_attention_num_buckets": 32}
_MODERN = {
    "model_type": "modernbert",
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "local_attention": 14,
    "pad_token_id": 0,
    "norm_eps": 1e-5,
}
MODERN_KEYS: dict[str, object] = {
    "attention.layer_norm_epsilon": 1e-5,
    "attention.sliding_window": 14,
    "attention.sliding_window_pattern": 3,
    "rope.freq_base": 160000.0,
    "rope.freq_base_swa": 10000.0,
}
MODERN_NAMES = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
    "attn_norm": "attn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.Wo": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
    "head.dense": "cls",
    "head.norm": "cls.norm",
    "classifier": "cls.output",
}
_NOMIC = COMMON | {"model_type": "nomic_bert", "type_vocab_size": 2, "hidden_act": "silu"}
NOMIC_CONFIG: dict[str, Any] = {
    "model_type": "nomic_bert",
    "vocab_size": VOCABULARY,
    "n_embd": 48,
    "n_head": 3,
    "n_layer": 3,
    "n_inner": 64,
    "n_positions": 64,
    "layer_norm_epsilon": 1e-12,
    "type_vocab_size": 2,
    "rotary_emb_base": 1000,
    "activation_function": "swiglu",
}
NOMIC_MOE = NOMIC_CONFIG | {
    "activation_function": "gelu",
    "moe_every_n_layers": 2,
    "num_experts": 4,
    "moe_top_k": 2,
}
NOMIC_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "emb_ln": "token_embd_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down",
    "norm2": "layer_output_norm",
}
NOMIC_MOE_NAMES = {
    **NOMIC_NAMES,
    "mlp.fc1": "ffn_up",
    "mlp.router.layer": "ffn_gate_inp",
    "mlp.experts.mlp.w1": "ffn_up_exps",
    "mlp.experts.mlp.w2": "ffn_down_exps",
}
_GTE = COMMON | {"model_type": "gte", "type_vocab_size": 1}
_BART = {
    "model_type": "bart",
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "activation_function": "gelu",
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": SEPARATOR,
    "decoder_start_token_id": SEPARATOR,
}
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def nomic_name(name: str) -> str:
    """The hub's name (`conversion_mapping.py` of `transformers`)."""
    return _renamed(
        name,
        {
            "embeddings.LayerNorm": "emb_ln",
            "layers.": "encoder.layers.",
            "self_attn.qkv": "attn.Wqkv",
            "self_attn.o_proj": "attn.out_proj",
            "up_proj": "fc11",
            "gate_proj": "fc12",
            "down_proj": "fc2",
            "post_attention_layernorm": "norm1",
            "post_mlp_layernorm": "norm2",
        },
    )


def gte_name(name: str) -> str:
    """The hub's name (`conversion_mapping.py` of `transformers`)."""
    renamed = _renamed(
        name.removeprefix("gte."),
        {
            "layers.": "encoder.layer.",
            "self_attn.qkv": "attention.qkv_proj",
            "self_attn.o_proj": "attention.o_proj",
            "post_attention_layernorm": "attn_ln",
            "post_mlp_layernorm": "mlp_ln",
        },
    )
    return renamed if renamed.startswith("classifier") else f"new.{renamed}"


def jina_shapes() -> dict[str, list[int]]:
    """Shapes of a tiny model of Jina's BERT, which `transformers` lacks."""
    width, inner = COMMON["hidden_size"], COMMON["intermediate_size"]
    found = {
        "embeddings.word_embeddings.weight": [VOCABULARY, width],
        "embeddings.token_type_embeddings.weight": [2, width],
    }
    norms, squares = ["embeddings.LayerNorm"], []
    for i in range(COMMON["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.mlp.layernorm"]
        squares += [f"{layer}.attention.self.{one}" for one in ("query", "key", "value")]
        squares.append(f"{layer}.attention.output.dense")
        found[f"{layer}.mlp.gated_layers.weight"] = [2 * inner, width]
        found[f"{layer}.mlp.wo.weight"] = [width, inner]
        found[f"{layer}.mlp.wo.bias"] = [width]
    for name in norms:
        found |= {f"{name}.weight": [width], f"{name}.bias": [width]}
    for name in squares:
        found |= {f"{name}.weight": [width, width], f"{name}.bias": [width]}
    return found


def nomic_moe_shapes(*, biased: bool = True) -> dict[str, list[int]]:
    """Shapes of a tiny nomic-bert with experts, which `transformers` lacks.

    GGUF files have no bias of the experts' sum.
    """
    width, inner, experts = NOMIC_MOE["n_embd"], NOMIC_MOE["n_inner"], NOMIC_MOE["num_experts"]
    found = {
        "embeddings.word_embeddings.weight": [VOCABULARY, width],
        "embeddings.token_type_embeddings.weight": [2, width],
    }
    norms = ["emb_ln"]
    for i in range(NOMIC_MOE["n_layer"]):
        layer = f"encoder.layers.{i}"
        norms += [f"{layer}.norm1", f"{layer}.norm2"]
        matrices = {"attn.Wqkv": [3 * width, width], "attn.out_proj": [width, width]}
        if i % 2 == 0:
            matrices |= {"mlp.fc1": [inner, width], "mlp.fc2": [width, inner]}
        for name, shape in matrices.items():
            found |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        if i % 2:
            found[f"{layer}.mlp.router.layer.weight"] = [experts, width]
            found[f"{layer}.mlp.experts.mlp.w1"] = [experts * inner, width]
            found[f"{layer}.mlp.experts.mlp.w2"] = [experts * inner, width]
            found |= {f"{layer}.mlp.experts.bias": [width]} if biased else {}
    for name in norms:
        found |= {f"{name}.weight": [width], f"{name}.bias": [width]}
    return found


def _renamed(name: str, parts: Mapping[str, str]) -> str:
    for old, new in parts.items():
        name = name.replace(old, new)
    return name


def jina_3_name(name: str) -> str:
    """The hub's name, as `transformers` says. Matrices have adapters beside them."""
    renamed = _renamed(
        name,
        {
            "embeddings.LayerNorm": "emb_ln",
            "layers.": "encoder.layers.",
            "self_attn.qkv": "mixer.Wqkv",
            "self_attn.o_proj": "mixer.out_proj",
            "post_attention_layernorm": "norm1",
            "post_mlp_layernorm": "norm2",
        },
    )
    adapted = ("word_embeddings", "Wqkv", "out_proj", "fc1", "fc2")
    if renamed.rpartition(".")[0].endswith(adapted):
        renamed = renamed.replace(".weight", ".parametrizations.weight.original")
    return f"roberta.{renamed}"


BART = TinyEncoder(
    "bart-scaled-classes",
    _BART
    | {
        "scale_embedding": True,
        "activation_function": "relu",
        "decoder_layers": 4,
        "decoder_start_token_id": 7,
    },
    classifies=True,
)
"""Unlike published models, it starts with another token than that with which texts end."""
MODELS = (
    TinyEncoder("bert", _BERT, gguf="bert", gguf_names=BERT_NAMES),
    TinyEncoder("bert-classes", _BERT, classifies=True, gguf="bert", gguf_names=BERT_NAMES),
    TinyEncoder("electra", _ELECTRA),
    TinyEncoder("electra-classes", _ELECTRA, classifies=True),
    TinyEncoder(
        "xlm-roberta",
        _ROBERTA,
        gguf="bert",
        gguf_names=ROBERTA_NAMES,
        keys={"context_length": 62},
    ),
    TinyEncoder(
        "xlm-roberta-classes",
        _ROBERTA,
        classifies=True,
        gguf="bert",
        gguf_names=ROBERTA_NAMES,
        keys={"context_length": 62},
    ),
    TinyEncoder("distilbert", _DISTIL),
    TinyEncoder("distilbert-classes", _DISTIL, classifies=True),
    TinyEncoder(
        "jina-v3",
        _JINA_3,
        gguf="jina-bert-v3",
        gguf_names=JINA_3_NAMES,
        keys={"rope.freq_base": 20000.0},
        folder_config=_JINA_3 | JINA_3_CONFIG,
        folder_name=jina_3_name,
        fused={"self_attn.qkv": QKV},
    ),
    TinyEncoder("nomic-bert-moe", NOMIC_MOE),
    TinyEncoder(
        "nomic-bert-moe-unbiased",
        NOMIC_MOE,
        gguf="nomic-bert-moe",
        gguf_names=NOMIC_MOE_NAMES,
        keys={
            "rope.freq_base": 1000.0,
            "expert_count": 4,
            "expert_used_count": 2,
            "moe_every_n_layers": 2,
            "block_count": 3,
            "context_length": 64,
            "feed_forward_length": 64,
            "attention.head_count": 3,
        },
    ),
    TinyEncoder("jina-bert-v2", _JINA, gguf="jina-bert-v2", gguf_names=JINA_NAMES),
    TinyEncoder("bart-classes", _BART, classifies=True),
    BART,
    TinyEncoder("mpnet", _MPNET),
    TinyEncoder("mpnet-classes", _MPNET, classifies=True),
    TinyEncoder(
        "modernbert",
        _MODERN,
        gguf="modern-bert",
        gguf_names=MODERN_NAMES,
        keys=MODERN_KEYS,
    ),
    TinyEncoder(
        "modernbert-classes",
        _MODERN,
        classifies=True,
        gguf="modern-bert",
        gguf_names=MODERN_NAMES,
        keys=MODERN_KEYS,
    ),
    TinyEncoder(
        "modernbert-mean-classes", _MODERN | {"classifier_pooling": "mean"}, classifies=True
    ),
    TinyEncoder(
        "nomic-bert",
        _NOMIC,
        gguf="nomic-bert",
        gguf_names=NOMIC_NAMES,
        keys={"rope.freq_base": 1000.0},
        folder_config=NOMIC_CONFIG,
        folder_name=nomic_name,
        fused={"self_attn.qkv": QKV},
    ),
    TinyEncoder(
        "gte",
        _GTE,
        folder_config=_GTE | {"model_type": "new", "rope_theta": 160000.0},
        folder_name=gte_name,
        fused={"self_attn.qkv": QKV, "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj")},
    ),
    TinyEncoder(
        "gte-classes",
        _GTE,
        classifies=True,
        folder_config=_GTE | {"model_type": "new", "rope_theta": 160000.0},
        folder_name=gte_name,
        fused={"self_attn.qkv": QKV, "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj")},
    ),
)
