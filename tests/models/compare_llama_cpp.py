"""Compare the tiny models' greedy tokens and log probabilities with llama.cpp's.

    PYTHONPATH=tests:src python tests/models/compare_llama_cpp.py [OPTION] [MODEL...]

Weights, keys and values are float32. With an f16 cache both programs round keys, values and
latents, and layers of random experts multiply the errors: with 26 such layers (DeepSeek-V2), log
probabilities differ by up to 0.16, and Heddle's with f16 and with f32 by 0.10. In float32 they
differ by 0.0001. Needs the `bench` and `test` extras. A model is the name
of a test's parameter, such as "granite-tied"; without names, all models are compared. With
`--exported`, llama.cpp reads the file that `heddle quantize` makes of a folder, and with
`--exported TYPE` a file with that type, such as q8_0. With `--adapted`, llama.cpp has an adapter in
GGUF beside the model, and Heddle's model is merged with the same adapter of PEFT. Each runs in
a process of its own, because llama.cpp ends the process where a file does not suit it.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import xllamacpp

from gguf_writer import write_gguf
from heddle.errors import UnsupportedModelError
from heddle.extensions.lora.merging import merge_files
from heddle.extensions.quantise.export import ARCHITECTURES
from heddle.extensions.quantise.quantising import quantise_file
from heddle.extensions.reference.model import ReferenceModel
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.mix import TARGETS, Mix
from lora_writer import (
    changes_of,
    gguf_tensors,
    modules_of,
    peft_tensors,
    write_gguf_adapter,
    write_peft,
)
from models.tiny import MODELS
from models.tiny.base import TOKENS, TinyModel
from models.tiny.base_joined import TinyJoined
from models.tiny.base_latent import TinyLatent

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPORTED, ADAPTED = "--exported", "--adapted"
NEW_TOKENS = 8
TOLERANCE = 0.02
"""Of log probabilities. A wrong setting gives > 0.1.

Gemma's differ by up to 0.010, because llama.cpp looks up GELU in a table of f16, and those of other
families by up to 0.001.
"""
QUANTISED_TOLERANCE = 1.0
"""The same, of files with a TYPE.

Both programs then round what a matmul reads to 8 bits, llama.cpp the scale of 32 of them to f16,
too. In random models that is much: with 40 prompts each and q8_0, the root mean square of the
errors of log probabilities against float32 is 0.022 in Heddle and 0.023 in llama.cpp with one
layer, 0.141 and 0.147 with four (width 256). With four layers, 6 and 7 of 40 greedy tokens differ
from those in float32, and 5 between the two: the first two tokens are 0.06 to 0.5 apart there. So
other texts after a few tokens are near ties and no fault; in F32 all are the same.
"""
KNOWN = {
    "deepseek_v2-groups": "(llama.cpp scores groups as V3 does, by their two best experts)",
    "gpt_oss-all experts": "(llama.cpp requires an output matrix)",
    "lfm2-biased": "(llama.cpp has no biases of short convolutions)",
    "llama-longrope": "(llama.cpp has longrope for Phi-3 only; here it divides positions, too)",
    "qwen2_moe-shared": "(llama.cpp requires an output matrix)",
    "phi3-windowed": "(llama.cpp ignores the window of Phi-3)",
}
"""Models whose results differ for a reason."""
KNOWN_EXPORTED = {
    "deepseek_v2-groups": KNOWN["deepseek_v2-groups"],
    "lfm2-biased": KNOWN["lfm2-biased"],
    "gemma3-stretched": "(llama.cpp knows which layers have a window: no key says so)",
    "llama-longrope": KNOWN["llama-longrope"],
    "phi3-windowed": KNOWN["phi3-windowed"],
}
"""The same, of exported folders."""
_ROUNDED = "(rounding: at the first token Heddle is as near to float32 as llama.cpp, or nearer)"
KNOWN_QUANTISED = KNOWN_EXPORTED | {
    "deepseek_v2-lite": _ROUNDED,
    "deepseek_v3-groups": _ROUNDED,
    "deepseek_v3-one group": _ROUNDED,
    "glm4_moe_lite-flash": _ROUNDED,
    "kimi_linear-linear": _ROUNDED,
    "qwen2_moe-shared": "(after rounding, both programs choose another expert at the second token)",
}
"""The same, of exported folders with a TYPE."""
SQUARE = ("qwen2", "qwen2_moe", "lfm2", "lfm2_moe")
"""Architectures that llama.cpp loads only if all heads together are as wide as the hidden state."""

DEEPSEEK = "deepseek2"
LAYERS_WITH_WHOLE_QUERIES = 27
"""llama.cpp knows DeepSeek-V2-Lite, whose queries are not compressed, by its number of layers."""


def main(names: list[str]) -> int:
    known = {str(model): model for model in MODELS}
    options = [name for name in names if name in (EXPORTED, ADAPTED) or name in TARGETS]
    names = [name for name in names if name not in options]
    if len(names) == 1:
        print(compare(known[names[0]], options))
        return 0
    is_adapted = ADAPTED in options
    reasons = KNOWN if is_adapted else (KNOWN, KNOWN_EXPORTED, KNOWN_QUANTISED)[len(options)]
    failures = 0
    if options and not is_adapted:
        known = {n: one for n, one in known.items() if one.config()["model_type"] in ARCHITECTURES}
    for name in names or known:
        command = [sys.executable, __file__, *options, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        reason = reasons.get(name, "")
        print(f"{name:28} {said[-1] if said else done.returncode} {reason}", flush=True)
        failures += done.returncode != 0 and name not in reasons
    return failures


def compare(model: TinyModel, options: Sequence[str]) -> str:
    """How close the results are.

    Raises:
        SystemExit: they differ.
    """
    if model.architecture in SQUARE:
        model = replace(model, width=model.q_width)
    if (
        isinstance(model, TinyLatent)
        and not model.query_rank
        and model.gguf_architecture == DEEPSEEK
    ):
        model = replace(model, layers=LAYERS_WITH_WHOLE_QUERIES)
    tolerance = QUANTISED_TOLERANCE if set(options) & TARGETS.keys() else TOLERANCE
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        adapter = None
        if options and ADAPTED not in options:
            mix = Mix.named(options[-1])
            quantise_file(model.write_folder(Path(folder) / "folder"), path, mix)
        else:
            metadata = model.metadata() | tokenizer(model.vocabulary)
            write_gguf(path, metadata, model.tensors())
        base = path
        if ADAPTED in options:
            adapter, path = path.with_name("adapter.gguf"), path.with_name("merged.gguf")
            try:
                merge_adapter(model, base, adapter, path)
            except UnsupportedModelError as error:
                return f"the adapter is refused: {error.message}"
        theirs = llama_cpp(base, adapter)
        with GGUFCheckpoint.open(path) as checkpoint:
            reference, tokens = ReferenceModel(checkpoint), list(TOKENS)
            worst = 0.0
            for choices in theirs:
                logits = reference.logits(tokens)[-1].astype(np.float64)
                ours = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
                worst = max(worst, *(abs(ours[id] - value) for id, value in choices.items()))
                if worst > tolerance:
                    raise SystemExit(f"log probabilities differ by {worst:.4f}")
                tokens.append(max(choices, key=lambda id: choices[id]))
                if ours[tokens[-1]] < ours.max() - tolerance:
                    raise SystemExit(f"llama.cpp chose {tokens[-1]}, Heddle {ours.argmax()}")
    return f"{len(theirs)} tokens equal, log probabilities within {worst:.5f}"


def merge_adapter(model: TinyModel, base: Path, adapter: Path, target: Path) -> None:
    """Write an adapter in GGUF to `adapter`, and the merge with the same one of PEFT to `target`.

    It changes matrices of attention and of feed-forward layers.
    """
    parts = ("q", "k", "v", "o", "qkv", "gate", "up", "gate_up", "down")
    ends = tuple(f".{part}_proj" for part in parts)
    modules = [one for one in modules_of(model) if one.endswith(ends) and "expert" not in one]
    if not modules or isinstance(model, TinyJoined):
        raise UnsupportedModelError("the model has no such matrices")
    changes = changes_of(model, modules=modules)
    write_gguf_adapter(adapter, model, gguf_tensors(model, changes))
    named = {
        model.folder_name(f"{name}.weight").removesuffix(".weight"): both
        for name, both in changes.items()
    }
    merge_files(base, write_peft(base.with_name("adapter"), peft_tensors(named)), target)


def tokenizer(vocabulary: int) -> dict[str, object]:
    """A SentencePiece vocabulary of single letters. Its last token ends a text."""
    pieces = ["<unk>", *(chr(ord("A") + id) for id in range(vocabulary - 2)), "</s>"]
    types = [2, *[1] * (vocabulary - 2), 3]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.zeros(vocabulary, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": vocabulary - 1,
        "tokenizer.ggml.eos_token_id": vocabulary - 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def llama_cpp(path: Path, adapter: Path | None = None) -> list[dict[int, float]]:
    """Log probabilities of all tokens, for each token that llama.cpp generates after TOKENS."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = 64, 1, False
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if adapter is not None:
        parameters.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)]
    server = xllamacpp.Server(parameters)
    body = {"prompt": TOKENS, "n_predict": NEW_TOKENS, "temperature": 0, "n_probs": 1000}
    with httpx.Client(base_url=server.listening_address, trust_env=False, timeout=60) as client:
        answer: dict[str, Any] = client.post("/completion", json=body).raise_for_status().json()
    steps = answer["completion_probabilities"]
    return [{one["id"]: one["logprob"] for one in step["top_logprobs"]} for step in steps]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
