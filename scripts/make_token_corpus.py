"""Write llama.cpp's token ids of the texts in `tests/text/tokenizer/data/corpus.json`.

    python scripts/make_token_corpus.py smollm2-135m=MODEL.gguf gemma3-270m=MODEL.gguf ...

Needs the `bench` and `test` extras. Writes, beside the corpus,

- `ids-ALIAS.json` for every model in the arguments;
- `ids-pretokenizers.json`, if smollm2-135m is among them: ids by its vocabulary with every other
  pre-tokenizer, in a model whose weights do not matter;
- `sentencepiece.json`: a small SentencePiece vocabulary, trained on the corpus, and its ids.

Each text has two lists of ids. In the first, llama.cpp parses special tokens, and adds BOS and EOS
if the file asks for them. In the second, it does neither. The pre-tokenizers have only the second
list, because they never get special tokens.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import xllamacpp
from gguf import GGUFWriter
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from heddle.weights.gguf.file import GGUFFile

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).parent.parent / "tests" / "text" / "tokenizer" / "data"
DEFAULT_ALIAS = "smollm2-135m"
PRE_TOKENIZERS = (
    "default",
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "dbrx",
    "gpt-4o",
    "refact",
    "seed-coder",
    "tekken",
)
PREFIX = "tokenizer.ggml."
WIDTH = 32

Texts = dict[str, str]
Ids = dict[str, list[list[int]]]


def main(arguments: list[str]) -> None:
    texts: Texts = json.loads((DATA / "corpus.json").read_text())
    paths = dict(argument.split("=", 1) for argument in arguments)
    for alias, path in paths.items():
        save(f"ids-{alias}.json", {"ids": llama_cpp_ids(path, texts)})
    if DEFAULT_ALIAS in paths:
        metadata = GGUFFile.open(paths[DEFAULT_ALIAS]).metadata
        save("ids-pretokenizers.json", {"ids": pre_tokenizer_ids(metadata, texts)})
    vocabulary = train_sentencepiece(texts)
    save("sentencepiece.json", {"metadata": vocabulary, "ids": ids_of(vocabulary, texts)})


def save(name: str, content: dict[str, Any]) -> None:
    content = {"made_with": f"xllamacpp {xllamacpp.__version__}"} | content
    (DATA / name).write_text(
        json.dumps(content, separators=(",", ":")).replace('],"', '],\n"') + "\n"
    )


def pre_tokenizer_ids(
    metadata: Mapping[str, object], texts: Texts
) -> dict[str, dict[str, list[int]]]:
    tokenizer = {key: value for key, value in metadata.items() if key.startswith(PREFIX)}
    found = {}
    for name in PRE_TOKENIZERS:
        ids = ids_of(tokenizer | {f"{PREFIX}pre": name}, texts)
        found[name] = {text: plain for text, (_, plain) in ids.items()}
    return found


def ids_of(tokenizer: Mapping[str, object], texts: Texts) -> Ids:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.gguf")
        write_model(path, tokenizer)
        return llama_cpp_ids(path, texts)


def llama_cpp_ids(path: str, texts: Texts) -> Ids:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx = 64
    parameters.n_parallel = 1
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    with httpx.Client(base_url=server.listening_address, trust_env=False, timeout=60) as client:

        def ids(text: str, special: bool) -> list[int]:
            body = {"content": text, "add_special": special, "parse_special": special}
            response = client.post("/tokenize", json=body)
            response.raise_for_status()
            return response.json()["tokens"]

        return {name: [ids(text, True), ids(text, False)] for name, text in texts.items()}


def write_model(path: str, tokenizer: Mapping[str, object]) -> None:
    """Write a one-layer llama model of zeros with a tokenizer's metadata."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in tokenizer.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value.tolist() if isinstance(value, np.ndarray) else list(value))
    size = len(tokenizer[f"{PREFIX}tokens"])
    writer.add_tensor("token_embd.weight", np.zeros((size, WIDTH), np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.zeros(WIDTH, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((WIDTH, WIDTH), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def train_sentencepiece(texts: Texts) -> dict[str, object]:
    """Pieces of the corpus, scored by the order of learning."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=1500, limit_alphabet=300, show_progress=False)
    learner.train_from_iterator(texts.values(), trainer)
    learnt = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    control = ["<unk>", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>"]
    user_defined = ["\n", "\n\n", "\n\n\n", "  ", "    ", "<tool_call>", "\t\t"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    special = {*control, *user_defined, *bytes_}
    # llama.cpp reads pieces as C strings. They end at a null character.
    pieces = [piece for piece, _ in learnt if piece not in special and "\0" not in piece]
    return {
        f"{PREFIX}model": "llama",
        f"{PREFIX}tokens": control + user_defined + bytes_ + pieces,
        f"{PREFIX}scores": [-1000.0] * (len(control) + len(user_defined))
        + [0.0] * 256
        + [-float(rank) for rank in range(len(pieces))],
        f"{PREFIX}token_type": [2]
        + [3] * (len(control) - 1)
        + [4] * len(user_defined)
        + [6] * 256
        + [1] * len(pieces),
        f"{PREFIX}bos_token_id": 1,
        f"{PREFIX}eos_token_id": 2,
        f"{PREFIX}unknown_token_id": 0,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
