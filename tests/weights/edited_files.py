"""Loads tiny models whose files were edited at random, and reports what each load took.

As a program: `python tests/weights/edited_files.py FIRST COUNT`. Each line of its output is JSON:
the number of an edit, seconds, bytes of memory beyond what unchanged models take, the edit, and
the error. It ends with status 1 after an error that is not one of Heddle's.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import random
import resource
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from alone import IS_CORE_ALONE
from folder_writer import write_raw_safetensors
from gguf_writer import Tensor, gguf_bytes
from heddle.config import EngineConfig
from heddle.doors import families
from heddle.errors import HeddleError
from heddle.loading.load import load_model
from models.tiny import FAMILIES

if TYPE_CHECKING:
    from models.tiny.base import TinyModel

CONFIG = EngineConfig(slots=1, threads=1, kv_cache=8 << 20)
KNOWN = {name for family in families() for name in family.hf}
MODELS = [
    models[0]
    for models in FAMILIES.values()
    if models[0].architecture in KNOWN or not IS_CORE_ALONE
]
FROZEN_AFTER = 120
"""Seconds after which the process ends with a traceback: the load holds the GIL or never ends."""


def deep(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES: tuple[object, ...] = (
    *(0, -1, 1, 2, 3, 7, 255, 65_535, 2**31, 2**32, 10**9, 2**62, 2**63 - 1, -(2**63), 10**400),
    *(0.0, -0.5, 0.3, 1.5, 1e-300, 1e38, 1e308, float("inf"), float("-inf"), float("nan")),
    *(None, True, False, "", "x", "default", "yarn", "linear", "dynamic", "longrope", "llama3"),
    *([], {}, [0], [-1], [None], [[]], [{}], ["x"], {"x": 1}, [1] * 100, [1] * 100_000, deep(200)),
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside of `value`."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    found = [path] if path else []
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def edit_json(value: Any, choice: random.Random) -> str:
    """Change a value somewhere in `value`. Returns what was done."""
    path = choice.choice(places(value))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if choice.random() < 0.1:
        del holder[path[-1]]
        return f"del {path}"
    new = copy.deepcopy(choice.choice(VALUES))
    holder[path[-1]] = new
    return f"{path} = {str(new)[:60]}"


def edit_folder(folder: Path, choice: random.Random) -> str:
    """Edit a JSON file of a folder, or the header of its tensors."""
    name = choice.choice(
        ["config.json"] * 4
        + ["tokenizer.json"] * 2
        + ["tokenizer_config.json", "generation_config.json", "model.safetensors"]
    )
    path = folder / name
    if name == "model.safetensors":
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        done = edit_json(header, choice)
        write_raw_safetensors(path, header, raw[8 + length :])
        return f"{name}: {done}"
    value = json.loads(path.read_text())
    done = "; ".join(edit_json(value, choice) for _ in range(choice.randint(1, 2)))
    path.write_text(json.dumps(value))
    return f"{name}: {done}"


GENERATION = {"temperature": 0.5, "top_k": 3, "eos_token_id": [1, 2], "do_sample": True}
SETTINGS = {"bos_token": "A", "eos_token": {"content": "B"}, "chat_template": "{{ messages }}"}


def write_edited_folder(model: TinyModel, folder: Path, choice: random.Random) -> str:
    """Write a model as a folder with a random edit. Returns the edit."""
    model.write_folder(folder)
    pipeline = json.loads((folder / "tokenizer.json").read_text())
    single = [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A"}}]
    tokens = {"B": {"id": "B", "ids": [1], "tokens": ["B"]}}
    template = {"type": "TemplateProcessing", "single": single, "special_tokens": tokens}
    pipeline["post_processor"] = {"type": "Sequence", "processors": [template]}
    pipeline["model"]["merges"] = [["A", "B"], "C D"]
    pipeline["model"]["vocab"] |= {"AB": 5, "CD": 6}
    split = {"type": "Split", "pattern": {"Regex": "a+|b"}, "behavior": "Isolated", "invert": False}
    steps = [split, {"type": "Digits", "individual_digits": True}, pipeline["pre_tokenizer"]]
    pipeline["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    pipeline["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}
    (folder / "tokenizer.json").write_text(json.dumps(pipeline))
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    return edit_folder(folder, choice)


def write_edited_gguf(model: TinyModel, path: Path, choice: random.Random) -> str:
    """Write a model as a GGUF file with a random edit. Returns the edit."""
    metadata: dict[str, Any] = dict(model.metadata())
    metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["AB", *map(chr, range(65, 64 + model.vocabulary))],
        "tokenizer.ggml.scores": np.zeros(model.vocabulary, np.float32),
        "tokenizer.ggml.token_type": np.ones(model.vocabulary, np.int32),
        "tokenizer.ggml.merges": ["A B"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "general.sampling.temp": 0.5,
    }
    tensors = model.tensors()
    kind = choice.choice(["key", "key", "key", "tensor", "bytes"])
    if kind == "key":
        key = choice.choice(list(metadata))
        arrays = [np.full(size, 3, np.int32) for size in (0, model.layers, 1000)]
        fits = [v for v in VALUES if type(v) in (int, float, bool, str) and not _is_too_large(v)]
        metadata[key] = choice.choice([*fits, *arrays, [], ["x"] * 100])
        path.write_bytes(gguf_bytes(metadata, tensors))
        return f"{key} = {str(metadata[key])[:60]}"
    if kind == "tensor":
        at = choice.randrange(len(tensors))
        old = tensors[at]
        shape = list(old.shape)
        shape[choice.randrange(len(shape))] = choice.choice([0, 1, 3, 1 << 20, 1 << 40, 2**63])
        tensors[at] = Tensor(old.name, old.data, tuple(shape), choice.choice([old.type, 1, 2, 99]))
        path.write_bytes(gguf_bytes(metadata, tensors))
        return f"{old.name} has shape {shape}"
    raw = bytearray(gguf_bytes(metadata, tensors))
    changes = {}
    for _ in range(choice.randint(1, 3)):
        place = choice.randrange(min(len(raw), 4096))
        raw[place] = changes[place] = choice.choice([0, 1, 127, 255])
    path.write_bytes(raw)
    return f"bytes {changes}"


def _is_too_large(value: object) -> bool:
    """Whether no type of GGUF holds the value."""
    if isinstance(value, float):
        return 1e39 < abs(value) < float("inf")
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def write_edited(number: int, place: Path) -> tuple[Path, str]:
    """Write edit `number` of all. Returns the model's path, and what was done."""
    choice = random.Random(number)
    model = MODELS[number // 2 % len(MODELS)]
    if number % 2 and model.gguf_names:
        path = place / "model.gguf"
        return path, f"{model}.gguf: {write_edited_gguf(model, path, choice)}"
    return place / "model", f"{model}: {write_edited_folder(model, place / 'model', choice)}"


def try_edit(number: int) -> dict[str, object]:
    """Load an edited model and make a token. Returns a line of the output."""
    with tempfile.TemporaryDirectory() as place:
        path, done = write_edited(number, Path(place))
        faulthandler.dump_traceback_later(FROZEN_AFTER, exit=True)
        began, error, is_typed = time.perf_counter(), None, True
        try:
            model = load_model(path, CONFIG)
            model.tokenizer.encode("ABBA 123 aab")
            model.close()
        except HeddleError as found:
            error = f"{type(found).__name__}: {found.message[:200]}"
        except BaseException as found:
            error, is_typed = repr(found)[:300], False
        seconds = time.perf_counter() - began
        faulthandler.cancel_dump_traceback_later()
    return {"edit": number, "seconds": round(seconds, 3), "bytes": 0, "done": done} | {
        "error": error,
        "typed": is_typed,
    }


def peak() -> int:
    """The most bytes of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(first: int, count: int) -> None:
    """Try some edits, after all models unchanged, which load the libraries."""
    with tempfile.TemporaryDirectory() as place:
        for number, model in enumerate(MODELS):
            load_model(model.write_folder(Path(place) / str(number)), CONFIG).close()
    before, is_typed = peak(), True
    for number in range(first, first + count):
        line = try_edit(number)
        is_typed = is_typed and bool(line["typed"])
        print(json.dumps(line | {"bytes": peak() - before}), flush=True)
    sys.exit(0 if is_typed else 1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ("0", "1000")))
