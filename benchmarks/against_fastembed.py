"""Compares embeddings of random models in published sizes: Heddle, and fastembed on ONNX Runtime.

    pip install fastembed onnx torch transformers
    python benchmarks/write_encoder.py bge-small bge-small.gguf
    python benchmarks/against_fastembed.py bge-small bge-small.gguf

fastembed (`TextEmbedding` of a local folder) has the same sizes with `quantize_dynamic` of ONNX
Runtime: int8, one scale for each matrix. Both get texts of 126 words, each of which is one token,
and make one vector of length 1 from the first token of each. The weights of the two differ, because
speed does not depend on them.

A figure is the median of the processor time of the process with one thread, in ms. So it also holds
where others use the machine. Both take turns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from write_encoder import MODELS, SPECIAL, VOCABULARY, Sizes

if TYPE_CHECKING:
    from collections.abc import Callable

_WORDS = 126
_INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


def write_tokenizer(folder: Path, context: int) -> None:
    """Write the files of a WordPiece tokenizer with the vocabulary of the GGUF file."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {SPECIAL.get(id, f"w{id}"): id for id in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"model_max_length": context, "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0}))


def write_onnx(sizes: Sizes, folder: Path) -> None:
    """Write model.onnx, a random BERT with int8 matrices."""
    import torch
    import transformers
    from onnxruntime.quantization import QuantType, quantize_dynamic

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
        max_position_embeddings=sizes.context,
        attn_implementation="eager",
    )

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.BertModel(config, add_pooling_layer=False).eval()

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            found = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return found.last_hidden_state

    ones = torch.ones(2, 16, dtype=torch.long)
    whole = folder / "whole.onnx"
    torch.onnx.export(
        States(),
        (ones, ones, ones * 0),
        str(whole),
        input_names=_INPUTS,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "b", 1: "s"} for name in [*_INPUTS, "last_hidden_state"]},
        opset_version=17,
        dynamo=False,
    )
    quantize_dynamic(whole, folder / "model.onnx", weight_type=QuantType.QInt8)
    whole.unlink()


def fastembed_of(folder: Path, width: int) -> Callable[[list[str]], object]:
    """The function of fastembed that embeds texts with the model of the folder."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="random",
        pooling=PoolingType.CLS,
        normalization=True,
        sources=ModelSource(hf="random/random"),
        dim=width,
        model_file="model.onnx",
    )
    model = TextEmbedding("random", specific_model_path=str(folder), threads=1)
    return lambda texts: list(model.embed(texts, batch_size=32))


def compare(sides: dict[str, Callable[[list[str]], object]], count: int, runs: int) -> None:
    """Print the processor time of each side for `count` texts, which take turns."""
    stream = random.Random(1)
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for run in range(runs + 1):
        texts = [
            " ".join(f"w{stream.randrange(1000, 30_000)}" for _ in range(_WORDS))
            for _ in range(count)
        ]
        for name, embed in sides.items():
            start = time.process_time()
            embed(texts)
            if run:  # the first one warms up
                spent[name].append(1e3 * (time.process_time() - start))
    for name, times in spent.items():
        middle = statistics.median(times)
        print(
            f"{count:3} texts  {name:28} {middle:8.1f} ms  ({min(times):.1f} to {max(times):.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("path", help="the GGUF file")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    from heddle import LLM, EngineConfig

    sizes = MODELS[arguments.model]
    with (
        tempfile.TemporaryDirectory() as place,
        LLM(arguments.path, EngineConfig(slots=32, threads=1, context=sizes.context)) as llm,
    ):
        folder = Path(place)
        write_tokenizer(folder, sizes.context)
        write_onnx(sizes, folder)
        sides = {
            f"Heddle, {Path(arguments.path).name}": llm.embed,
            "fastembed, int8": fastembed_of(folder, sizes.width),
        }
        for count in (1, 32):
            compare(sides, count, arguments.runs)


if __name__ == "__main__":
    main()
