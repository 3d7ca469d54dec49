"""Reads what sentence-transformers stores beside a model: pooling, dense layers, prompts.

`modules.json` lists the modules that a text passes; each has a folder with a `config.json`. The
names are those of sentence-transformers 5 (`sentence_transformers/models/`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.weights.huggingface.json_files import parse_json, read_json, read_optional_json

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config

_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_POOLING = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_MODE = re.compile("pooling_mode_(.+?)(?:_tokens?)?")
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "",
    "torch.nn.modules.activation.Tanh": "tanh",
}
_ORDER = re.compile("(Transformer )?(Pooling )?(Dense ){0,2}(Normalize )?")


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """The pooling and dense layers after the last hidden states, and the prompts.

    Attributes:
        pooling: "mean", "cls" or "last"; None if the folder does not say.
        dense: folder, output width and activation of each dense layer; the activation may be empty.
        prompts: texts to put before an input, by name.
        default_prompt: name of the prompt for inputs without one; None: no prompt.
    """

    pooling: str | None = None
    dense: tuple[tuple[str, object, str], ...] = ()
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None


def read_sentence_modules(folder: Path) -> SentenceModules:
    """The modules of a folder; none if it has no modules.json.

    Raises:
        ModelFileError: a file is damaged.
        UnsupportedModelError: a module does something that Heddle does not.
    """
    pooling, dense, modules = None, [], _modules(folder)
    kinds = [kind for kind, _ in modules]
    if not _ORDER.fullmatch(" ".join([*kinds, ""])):
        raise UnsupportedModelError(
            f"{folder / _MODULES}: modules {', '.join(kinds)} are not supported; supported:"
            " Transformer, Pooling, at most 2 Dense, Normalize, in this order",
            param=_MODULES,
        )
    for kind, path in modules:
        if kind == "Pooling":
            pooling = _pooling(folder / path / "config.json")
        elif kind == "Dense":
            dense.append((path, *_dense(folder / path / "config.json")))
    prompts = read_optional_json(folder / _PROMPTS)
    texts, default = prompts.get("prompts") or {}, prompts.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ModelFileError(f"{folder / _PROMPTS}: prompts must be texts by name", field="prompts")
    if default is not None and (not isinstance(default, str) or default not in texts):
        raise ModelFileError(
            f"{folder / _PROMPTS}: default_prompt_name {default!r} is not among the prompts",
            field="default_prompt_name",
        )
    return SentenceModules(pooling, tuple(dense), tuple(texts.items()), default)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module."""
    path = folder / _MODULES
    if not path.is_file():
        return []
    try:
        entries: Any = parse_json(path.read_bytes())
        found = [(entry["type"].rpartition(".")[2], entry["path"]) for entry in entries]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelFileError(f"{path} does not list modules: {error!r}", field=_MODULES) from error
    for _, place in found:
        if not isinstance(place, str) or Path(place).name != place or place == "..":
            raise ModelFileError(
                f"{path} names {place!r}, which is not a plain name", field=_MODULES
            )
    return found


def _pooling(path: Path) -> str:
    config = read_json(path)
    modes = [_MODE.fullmatch(key) for key, on in config.items() if on is True]
    name = config.get("pooling_mode")  # later versions name it instead
    chosen = [mode[1] for mode in modes if mode] or [str(name)]
    if len(chosen) != 1 or chosen[0] not in _POOLING:
        raise UnsupportedModelError(
            f"{path}: pooling {', '.join(chosen)} is not supported; supported:"
            f" one of {', '.join(_POOLING)}",
            param="pooling_mode",
        )
    return _POOLING[chosen[0]]


def _dense(path: Path) -> tuple[object, str]:
    """The width of a dense layer's result, unchecked, and its activation."""
    config: Config = read_json(path)
    activation, residual = config.get("activation_function"), config.get("use_residual", False)
    if str(activation) not in _ACTIVATIONS or residual:
        raise UnsupportedModelError(
            f"{path}: use_residual {residual!r} with activation_function {activation!r} is not"
            f" supported; supported: {', '.join(_ACTIVATIONS)}, without use_residual",
            param="activation_function",
        )
    return config.get("out_features"), _ACTIVATIONS[str(activation)]
