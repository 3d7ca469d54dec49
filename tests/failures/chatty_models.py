"""Tiny models of several families whose tokens spell any text, with a chat template."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from models.tiny import falcon_h1, llama, qwen3_moe, rwkv7
from models.tiny.gemma3 import TinyGemma3
from templates import HERMES

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.base import TinyModel

CONTROLS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
MERGES = ("t h", "th e", "i n", "a n", "Ġ a", "Ġ the", "o n", "e r")
REASONING = HERMES.replace("assistant\n", "assistant\n<think>\n") + "{# ends with </think> #}"
VOCABULARY = 256 + len(MERGES) + len(CONTROLS)
CONTEXT = 1024

SHAPES: dict[str, TinyModel] = {
    "dense": llama.PLAIN,
    "windows": TinyGemma3("windowed", heads=4, kv_heads=2, head_dim=16, layers=7, window=40),
    "experts": qwen3_moe.MODELS[0],
    "hybrid": falcon_h1.MODELS[0],
    "recurrent": rwkv7.MODELS[0],
}
"""A model of each kind of state: pages, windowed pages, pages and experts, pages and a recurrent
state, a recurrent state alone."""


def write_model(kind: str, folder: Path) -> Path:
    """Write the model of a kind as a folder."""
    model = replace(SHAPES[kind], vocabulary=VOCABULARY, context=CONTEXT)
    model.write_folder(folder, eos_token_id=VOCABULARY - 3)
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
    named = {"eos_token": CONTROLS[1], "chat_template": REASONING}
    (folder / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    return folder


def _tokenizer() -> dict[str, object]:
    """A byte-level tokenizer.json: a token for each byte, a few of several bytes, and controls."""
    pieces = [*_byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
    controls = [
        {"id": len(pieces) + i, "content": text, "special": "think" not in text}
        for i, text in enumerate(CONTROLS)
    ]
    return {
        "added_tokens": controls,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "model": {
            "type": "BPE",
            "vocab": {piece: id for id, piece in enumerate(pieces)},
            "merges": list(MERGES),
        },
    }


def _byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte (GPT-2's table)."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]
