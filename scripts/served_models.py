"""Says which of the hub's most loaded text models Heddle serves, and why it refuses the others.

    python scripts/served_models.py

`hub_models.json` beside this file has a hundred models: ids, and the keys of config.json that
decide. They were written from memory of public config.json files, so a size may be wrong; the list
is a choice, not a count of downloads. The code that decides is the program's own: the choice of
files, the families, the readers of quantised weights, and the readers of tokenizers. No weight is
read, so what only tensors show is not checked, and of GGUF files only the names of architecture and
tokenizer are.
"""

from __future__ import annotations

import base64
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.errors import HeddleError
from heddle.models.build import family_of
from heddle.text.tokenizer.tokenizer import Tokenizer
from heddle.weights.gguf.tokenizer import read_tokenizer as read_gguf_tokenizer
from heddle.weights.hub.choice import choose
from heddle.weights.hub.names import parse
from heddle.weights.huggingface.checkpoint import check_config
from heddle.weights.huggingface.config import hyperparameters_of
from heddle.weights.huggingface.quantised import check_quantisation
from heddle.weights.huggingface.sentence_modules import SentenceModules
from heddle.weights.huggingface.tokenizer import read_tokenizer
from heddle.weights.hyperparameters import Bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MODELS = Path(__file__).with_name("hub_models.json")

_ANY_SIZE = Bounds(1 << 20, 1 << 30)
_PATTERN = r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+"
_LETTERS = {chr(code): code - 33 for code in range(33, 127)}


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the hub.

    Attributes:
        id: ORG/NAME.
        use: generate, embeddings, rerank or classify.
        config: keys of config.json; empty for GGUF files.
        weights: how a folder stores its weights: safetensors or bin.
        tokenizer: the files of its tokenizer, by a name of `_TOKENIZERS`.
        gguf: architecture, tokenizer, pre-tokenizer and quant of a GGUF file; empty for folders.
    """

    id: str
    use: str
    config: Mapping[str, Any]
    weights: str
    tokenizer: str
    gguf: Mapping[str, str]

    @property
    def form(self) -> str:
        """How its weights are stored."""
        if self.gguf:
            return f"GGUF {self.gguf['quant']}"
        if self.weights == "bin":
            return "pickle"
        settings = self.config.get("quantization_config") or {}
        method = settings.get("quant_method", "MLX" if "quantization" in self.config else "")
        form = settings.get("format", settings.get("quant_algo", ""))
        return " ".join(word for word in (method, form) if word) or "safetensors"


def read_models() -> list[Model]:
    """The models of the list. One that is `like` another has its config, but for its own keys."""
    found: dict[str, Model] = {}
    for row in json.loads(MODELS.read_text("utf-8")):
        like = found.get(row.get("like", ""))
        config = {**(like.config if like else {}), **row.get("config", {})}
        found[row["id"]] = Model(
            row["id"],
            row["use"],
            config,
            row.get("weights", "safetensors"),
            row.get("tokenizer", like.tokenizer if like else "byte-bpe"),
            row.get("gguf", {}),
        )
    return list(found.values())


def refusal(model: Model) -> str:
    """Why Heddle refuses a model; empty if it serves it."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            _open(model, Path(folder))
    except HeddleError as error:
        return error.message.replace(f"{folder}/", "").replace(folder, model.id)
    return ""


def _open(model: Model, folder: Path) -> None:
    """Take the steps that a load takes before it reads weights. Raises as they do."""
    name = parse(model.id)
    assert name is not None, f"{model.id} is no name of the hub"
    if model.gguf:
        choose(name, [f"{name.repository.rpartition('/')[2]}-{model.gguf['quant']}.gguf"])
        family_of("gguf", model.gguf["architecture"])
        Tokenizer.of(read_gguf_tokenizer(_gguf_metadata(model.gguf)))
        return
    _TOKENIZERS[model.tokenizer](folder)
    (folder / "config.json").write_text(json.dumps(model.config))
    weights = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[model.weights]
    choose(name, [weights, *(file.name for file in folder.iterdir())])
    config = check_config(folder, family_of, model.id)
    check_quantisation(config)
    hyperparameters = hyperparameters_of(config, SentenceModules(), _ANY_SIZE)
    family_of("hf", str(config["model_type"])).build(hyperparameters, 0)
    Tokenizer.of(read_tokenizer(folder, {**config, "vocab_size": None}))


# --- tokenizers of a few tokens ------------------------------------------------------------------


def _gguf_metadata(gguf: Mapping[str, str]) -> dict[str, object]:
    pieces = [*_LETTERS, *(f"<0x{byte:02X}>" for byte in range(256))]
    of_file = {
        "model": gguf["tokenizer"],
        "pre": gguf["pre"],
        "tokens": pieces,
        "token_type": [1] * len(_LETTERS) + [6] * 256,
        "scores": [0.0] * len(pieces),
        "merges": [],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in of_file.items()}


def _pipeline(folder: Path, model: Mapping[str, object], **steps: object) -> None:
    """Write tokenizer.json."""
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, **steps}))


def _byte_bpe(folder: Path) -> None:
    split = {
        **{"type": "Split", "pattern": {"Regex": _PATTERN}},
        **{"behavior": "Isolated", "invert": False},
    }
    words = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    steps = {"type": "Sequence", "pretokenizers": [split, words]}
    _pipeline(folder, {"type": "BPE", "vocab": _LETTERS, "merges": []}, pre_tokenizer=steps)


def _roberta_bpe(folder: Path) -> None:
    marks = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    vocabulary = {piece: id for id, piece in enumerate((*marks, *_LETTERS))}
    _pipeline(
        folder,
        {"type": "BPE", "vocab": vocabulary, "merges": []},
        added_tokens=[{"id": id, "content": one, "special": True} for id, one in enumerate(marks)],
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        post_processor={"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]},
    )


def _sentencepiece_bpe(folder: Path) -> None:
    pieces = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_LETTERS)
    vocabulary = {piece: id for id, piece in enumerate((*pieces, "AB"))}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [["A", "B"]], "byte_fallback": True}
    steps = [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    _pipeline(folder, model, normalizer={"type": "Sequence", "normalizers": steps})
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _marks(*marks: tuple[str, int]) -> dict[str, Any]:
    """The step that puts the first mark before a text and the last one after it."""
    first, *_, last = (mark for mark, _ in marks)
    single = [
        {"SpecialToken": {"id": first, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": last, "type_id": 0}},
    ]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    pair.append({"SpecialToken": {"id": last, "type_id": 1}})
    known = {mark: {"id": mark, "ids": [id], "tokens": [mark]} for mark, id in marks}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}


def _wordpiece(folder: Path) -> None:
    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocabulary = {piece: id for id, piece in enumerate((*marks, *_LETTERS))}
    _pipeline(
        folder,
        {
            **{"type": "WordPiece", "vocab": vocabulary, "unk_token": "[UNK]"},
            **{"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        },
        added_tokens=[{"id": id, "content": one, "special": True} for id, one in enumerate(marks)],
        normalizer={
            **{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
            **{"strip_accents": None, "lowercase": True},
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_marks(("[CLS]", 2), ("[SEP]", 3)),
    )


def _unigram(folder: Path) -> None:
    marks = ("<s>", "<pad>", "</s>", "<unk>")
    pieces = [[piece, 0.0] for piece in marks] + [[piece, -1.0] for piece in ("\u2581", *_LETTERS)]
    _pipeline(
        folder,
        {"type": "Unigram", "vocab": pieces, "unk_id": 3},
        added_tokens=[{"id": id, "content": one, "special": True} for id, one in enumerate(marks)],
        pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
        post_processor=_marks(("<s>", 0), ("</s>", 2)),
    )


def _tiktoken(folder: Path) -> None:
    lines = (b"%s %d" % (base64.b64encode(bytes([byte])), byte) for byte in range(256))
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines))


def _tekken(folder: Path) -> None:
    vocabulary = [{"token_bytes": base64.b64encode(bytes([byte])).decode()} for byte in range(256)]
    config = {
        "pattern": _PATTERN,
        "default_vocab_size": 256 + 30,
        "default_num_special_tokens": 30,
    }
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocabulary}))


def _gpt2_files(folder: Path) -> None:
    (folder / "vocab.json").write_text(json.dumps(_LETTERS))
    (folder / "merges.txt").write_text("#version: 0.2\n")


_TOKENIZERS: dict[str, Callable[[Path], None]] = {
    "byte-bpe": _byte_bpe,
    "roberta-bpe": _roberta_bpe,
    "spm-bpe": _sentencepiece_bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "tiktoken": _tiktoken,
    "tekken": _tekken,
    "gpt2-files": _gpt2_files,
}


def table() -> list[str]:
    """The lines of the table in docs/reference/models.md."""
    models = read_models()
    rows = [_cells(model, refusal(model)) for model in models]
    served = sum(row.endswith("| yes | |") for row in rows)
    return [
        f"{served} of {len(models)} are served.",
        "",
        "| model | use | stored as | served | why not |",
        "|---|---|---|---|---|",
        *rows,
    ]


def _cells(model: Model, why: str) -> str:
    """A line of the table. Of the reason, it has the part before the advice."""
    short = why.partition(";")[0].replace("|", "\\|")
    for known in (f"{model.id}: ", f"{model.id} has ", "config.json: "):
        short = short.removeprefix(known)
    end = f"no | {short} |" if why else "yes | |"
    return f"| {model.id} | {model.use} | {model.form} | {end}"


def main() -> None:
    models = read_models()
    served = 0
    for model in models:
        why = refusal(model)
        served += not why
        print(f"{'refused' if why else 'served ':8}{model.id} ({model.use}, {model.form})")
        if why:
            print(f"        {why}")
    print(f"{served} of {len(models)} are served")


if __name__ == "__main__":
    main()
