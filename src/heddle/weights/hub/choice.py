"""Chooses which files of a repository a model needs. Everything else stays on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from heddle.doors import tokenizer_files
from heddle.errors import ModelSourceError
from heddle.weights.gguf.split import model_name, part_names
from heddle.weights.pickles import check_no_pickle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from heddle.weights.hub.names import HubName

QUANTS = (
    *("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q8_0", "Q6_K", "Q5_K_S", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL"),
    *("MXFP4", "Q5_0", "Q5_1", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "F32"),
)
"""Quants in order of preference: a name without a quant takes the first that there is."""

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
TEMPLATES = ("tokenizer_config.json", "chat_template.jinja", "chat_template.json")
TOKENIZER = "tokenizer.json"
CARD = "README.md"

_DESCRIPTIONS = (
    *(CONFIG, INDEX, TOKENIZER, *TEMPLATES, "generation_config.json"),
    "hf_quant_config.json",
    # Of models that see pictures.
    *("preprocessor_config.json", "processor_config.json"),
    # Of embedding models: pooling, prompts, and the layers after the last one.
    *("modules.json", "config_sentence_transformers.json", "[0-9]_*/config.json"),
)
_TYPE = re.compile(
    r"(?<![a-z0-9])(?:ud-)?(?:i?q[0-9]_[a-z0-9_]+|tq[0-9]_[0-9]|mxfp4|b?f16|f32)$", re.I
)
"""A type at the end of a model's name."""

_NOT_MODELS = ("mmproj", "imatrix")
"""GGUF files that are no language models: of image encoders, and of quantisers."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of a model.

    Attributes:
        first: the files that are fetched first. They may name further files.
        is_folder: whether the model is a folder of safetensors; else `first` is one GGUF file, in
            all its parts.
    """

    first: tuple[str, ...]
    is_folder: bool


def choose(name: HubName, files: Iterable[str]) -> Choice:
    """The files that the model `name` needs of those that its repository has.

    A repository with config.json and safetensors is taken as a folder unless the name has a quant.

    Raises:
        ModelSourceError: the repository has no such model. Lists what it has.
        UnsupportedModelError: its weights are pickles only.
    """
    files = sorted(files)
    has_weights = WEIGHTS in files or INDEX in files
    if name.quant is None and has_weights and CONFIG in files:
        return Choice(_descriptions(files), is_folder=True)
    models = _models(files)
    if not models:
        raise _nothing(name, files)
    return Choice(_parts(name, _pick(name, models), files), is_folder=False)


def model_files(files: Iterable[str]) -> Iterator[tuple[str | None, tuple[str, ...]]]:
    """The complete models among the files of a repository.

    Yields:
        For a folder of safetensors: None and all of its files. For a GGUF model: a quant that means
        it, and its parts.
    """
    files = sorted(files)
    weights = [file for file in files if file.endswith(".safetensors")]
    if weights and CONFIG in files:
        yield None, (*_descriptions(files), *weights)
    models = _models(files)
    for model, first in models.items():
        parts = part_names(first)
        if {*parts} <= {*files}:
            yield _quant_of(model, models), parts


def _quant_of(model: str, models: dict[str, str]) -> str:
    """The shortest text that means this model: its type if no other model has the type."""
    base = model.rpartition("/")[2]
    word = _TYPE.search(base)
    if word and _matching(word[0], models, exact=True) == models[model]:
        return word[0]
    return base


def weights_of(name: HubName, places: Sequence[str], files: Iterable[str]) -> tuple[str, ...]:
    """The files with the tensors of a folder.

    Args:
        name: the model.
        places: the files that the index names; empty without an index.
        files: all files of the repository.

    Raises:
        ModelSourceError: a file that the index names is missing.
    """
    files = set(files)
    needed = sorted(set(places)) or [WEIGHTS]
    missing = [file for file in needed if file not in files]
    if missing:
        raise ModelSourceError(
            f"{name.repository}: {INDEX} names {_some(missing)}, which the repository lacks;"
            " its author has to mend it, or take another revision",
            param="model",
        )
    layers = [file for file in files if fnmatchcase(file, f"[0-9]_*/{WEIGHTS}")]
    return (*needed, *sorted(layers))


def _descriptions(files: Sequence[str]) -> tuple[str, ...]:
    """The files of a folder that hold no tensors."""
    tokenizers = () if TOKENIZER in files else tuple(tokenizer_files())
    wanted = (*_DESCRIPTIONS, *tokenizers)
    return tuple(file for file in files if any(fnmatchcase(file, one) for one in wanted))


def _models(files: Sequence[str]) -> dict[str, str]:
    """The GGUF models among the files: the first part of each by its name without suffix."""
    models: dict[str, str] = {}
    for file in files:
        base = file.rpartition("/")[2].lower()
        if base.endswith(".gguf") and not any(word in base for word in _NOT_MODELS):
            models.setdefault(model_name(file), file)
    return models


def _pick(name: HubName, models: dict[str, str]) -> str:
    """The first part of the model that the name means."""
    if name.quant is None and len(models) == 1:
        return next(iter(models.values()))
    for quant in QUANTS if name.quant is None else (name.quant,):
        if found := _matching(quant, models, exact=True):
            return found
    found = None if name.quant is None else _matching(name.quant, models, exact=False)
    if found is None:
        wanted = "one of the usual types" if name.quant is None else repr(name.quant)
        raise ModelSourceError(
            f"{name.repository} has no GGUF file of {wanted}; name one of"
            f" {_some([_shown(model) for model in models])} as {name.repository}:QUANT",
            param="model",
        )
    return found


def _matching(quant: str, models: dict[str, str], *, exact: bool) -> str | None:
    """The model whose name has the quant, of several the one that `QUANTS` has first.

    An exact match has the quant as a word of its own: Q4_K_M is not in IQ4_K_M.
    """
    text = re.escape(quant.lower())
    pattern = re.compile(rf"(?<![a-z0-9]){text}(?![a-z0-9_])" if exact else text)
    found = [name for name in models if pattern.search(name.lower())]
    return models[min(found, key=_preference)] if found else None


def _preference(model: str) -> tuple[int, int, str]:
    """Sorts models: by the default order of quants, then the shorter name first."""
    lower = model.lower()
    places = (place for place, quant in enumerate(QUANTS) if quant.lower() in lower)
    return next(places, len(QUANTS)), len(model), model


def _parts(name: HubName, first: str, files: Sequence[str]) -> tuple[str, ...]:
    names = part_names(first)
    missing = sorted({*names} - {*files})
    if missing:
        raise ModelSourceError(
            f"{name.repository}: the split model {first} lacks {_some(missing)}; its author has"
            " to mend it, or take another file",
            param="model",
        )
    return names


def _shown(model: str) -> str:
    return model.rpartition("/")[2]


def _nothing(name: HubName, files: Sequence[str]) -> ModelSourceError:
    check_no_pickle(name.repository, files, name.repository)
    kind = "GGUF file" if name.quant is not None else f"{CONFIG} with safetensors and no GGUF file"
    return ModelSourceError(
        f"{name.repository} has no {kind}; it has {_some(files) or 'no files'}", param="model"
    )


def _some(names: Sequence[str]) -> str:
    """The first of the names, for errors. A repository may have thousands."""
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
