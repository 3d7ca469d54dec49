"""Tiny encoders with a WordPiece vocabulary, for whole texts: makers of vectors, classifiers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from folder_writer import write_safetensors
from models.tiny_encoders import MODELS, VOCABULARY

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", "##s", "loom", "warp"]
CLS, SEP = 2, 3
_BY_NAME = {model.name: model for model in MODELS}


def write_encoder(folder: Path, labels: list[str] | None = None, **config: Any) -> Path:
    """A BERT; with `labels`, a classifier of these."""
    model = _BY_NAME["bert-classes" if labels else "bert"]
    changes: dict[str, Any] = dict(config)
    if labels:
        changes["id2label"] = {str(id): label for id, label in enumerate(labels)}
    model.write_folder(folder, **changes)
    if labels:
        state = model.state()
        stream = np.random.RandomState(7)
        for name in ("classifier.weight", "classifier.bias"):
            shape = (len(labels), *state[name].shape[1:])
            state[name] = stream.standard_normal(shape).astype(np.float32)
        write_safetensors(folder / "model.safetensors", state)
    words = WORDS + [f"word{id}" for id in range(VOCABULARY - len(WORDS))]
    as_is = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [{"id": id, "content": WORDS[id], "special": True, **as_is} for id in range(4)]
    begin = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
    end = {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
    parts = [begin, {"Sequence": {"id": "A", "type_id": 0}}, end]
    last = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": parts,
            "pair": [*parts, {"Sequence": {"id": "B", "type_id": 1}}, last],
            "special_tokens": {
                WORDS[id]: {"id": WORDS[id], "ids": [id], "tokens": [WORDS[id]]}
                for id in (CLS, SEP)
            },
        },
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: id for id, word in enumerate(words)},
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
