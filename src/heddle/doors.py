"""The doors of the core: what an extension may bring, and which extensions there are.

An extension is a package with a value `EXTENSION`. Heddle's own are the packages in
`heddle/extensions`; other packages name theirs as an entry point of the group `heddle`. The core
imports no extension by its name, and it runs without any.

What an extension brings is named by a reference, a text `module:name`. The core imports it when it
is first used, so that an extension that nobody uses costs no time and needs no package.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from importlib.metadata import EntryPoint

_OWN = "heddle.extensions"
_FAMILIES = "heddle.models.families"
_GROUP = "heddle"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that computes models.

    Attributes:
        load: reference of a function with the signature of
            :class:`heddle.executors.devices.Load`.
        check: reference of a function that takes the device's name and raises ConfigError if this
            machine has no such device; empty: every machine has it.
        host: reference of a function that takes `load` and the arguments of
            :class:`heddle.executors.devices.Load`, for a device that runs in a process of its own
            because it may fail in a way that only a new process mends; empty: it runs in this one.
        extra: the extra of the package that the device needs; empty: none.
        is_numbered: whether a name may end with the number of one of several such devices.
    """

    load: str
    check: str = ""
    host: str = ""
    extra: str = ""
    is_numbered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The parts that one package brings. All texts but keys are references.

    Attributes:
        settings: classes with settings (:class:`heddle.config.EngineSettings` or
            :class:`heddle.config.ServerSettings`).
        families: values of :class:`heddle.models.family.Family`.
        call_forms: functions that take the source of a chat template and return the
            :class:`heddle.text.chat.call_forms.CallForm` that it writes, or None. They are asked
            before Heddle looks itself.
        quantisations: values of :class:`heddle.weights.huggingface.quantised.Quantisation`, by the
            `quant_method` that config.json of a folder names.
        tokenizers: values of :class:`heddle.weights.tokenizer_kind.TokenizerKind`, by the
            `tokenizer.ggml.model` of a GGUF file or the `model.type` of a tokenizer.json.
        tokenizer_files: functions that take the path of a file and return what a tokenizer.json
            would hold, by the name of the file, for folders without a tokenizer.json.
        devices: devices by name.
        apis: values of :class:`heddle.server.generate.api.Api`.
        fields: rows of request fields (`heddle.server.generate.vendor_fields.row.Row`), by the
            vendor that documents them.
        collectors: functions that take a registry of models and the server's settings, and return
            a collector of Prometheus, or None. An extension that exports metrics asks them.
        readers: functions that take the server's settings and return a
            :data:`heddle.server.http.edge.Reader` of the records of requests, or None.
        commands: functions or Typer groups, by the name of the command.
        advice: a sentence that says where to find a better model than the default, for those who
            named none (a plain text and no reference); empty: none.
        drafters: functions that take a sequence and return a
            :class:`heddle.scheduler.guessing.Drafter`, or None, by the name of the drafter.
        parameters: classes with sampling parameters of requests
            (:class:`heddle.parameters.ExtensionParams`).
        logits_processors: functions that take the options of a request and the model's
            :class:`heddle.text.tokenizer.tokenizer.Tokenizer`, and return a
            :class:`heddle.token_rules.LogitsProcessor`, by the name of the processor. They raise
            InvalidRequestError if an option is wrong.
        grammars: classes of :class:`heddle.text.constrained.language.Language`, made from a model's
            tokens, by the kind of :class:`heddle.grammars.Grammar` that they read.
        formats: values of :class:`heddle.server.generate.constraint_field.AnswerFormat`, by the
            `type` of `response_format` that they serve.
        constraints: fields of requests that hold a grammar; each reference names a sequence of
            :class:`heddle.server.generate.constraint_field.ConstraintField`.
        batch_drafters: functions that take a loaded model and its settings and return a
            :class:`heddle.engine.drafters.BatchDrafter`, or None.
        shares: functions that take a checkpoint, its
            :class:`heddle.text.tokenizer.tokenizer.Tokenizer` and the settings, and return the
            settings with which the device loads the model: with less `kv_cache`, for one, if the
            extension needs a part of it.
        judges: functions that take a checkpoint and its
            :class:`heddle.text.tokenizer.tokenizer.Tokenizer`, and return a
            :class:`heddle.loading.judge.Judge`, or None. They may read the checkpoint.
        engrams: a class with the methods of :class:`heddle.engine.engrams.EngramLibrary`, and `of`,
            which opens the tables of the settings; empty: none.
        adapters: the same for :class:`heddle.engine.adapters.AdapterLibrary`.
        eyes: a function that takes an open checkpoint, its
            :class:`heddle.text.tokenizer.tokenizer.Tokenizer`, the settings and the executor of the
            model, and returns its :class:`heddle.pictures.Sighted`, or None; empty: none.
        companions: functions that take the path of a GGUF model of the hub, the name of its file in
            the repository and the names of all files there. They return the names of files that are
            fetched beside it.
        picture_reader: a value of :class:`heddle.sent_pictures.PictureReader`; empty: none.
    """

    settings: Sequence[str] = ()
    families: Sequence[str] = ()
    call_forms: Sequence[str] = ()
    quantisations: Mapping[str, str] = field(default_factory=dict)
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    tokenizer_files: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, Device] = field(default_factory=dict)
    apis: Sequence[str] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    collectors: Sequence[str] = ()
    readers: Sequence[str] = ()
    commands: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""
    drafters: Mapping[str, str] = field(default_factory=dict)
    parameters: Sequence[str] = ()
    logits_processors: Mapping[str, str] = field(default_factory=dict)
    grammars: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    constraints: Sequence[str] = ()
    batch_drafters: Sequence[str] = ()
    shares: Sequence[str] = ()
    judges: Sequence[str] = ()
    engrams: str = ""
    adapters: str = ""
    eyes: str = ""
    companions: Sequence[str] = ()
    picture_reader: str = ""


@cache
def extensions() -> Mapping[str, Extension]:
    """All extensions by name: Heddle's own, then those of other packages, each in order of name.

    Raises:
        ConfigError: an entry point cannot be imported, is no extension, or has the name of another.
    """
    found = {name: refer(f"{_OWN}.{name}:EXTENSION") for name in _own_names()}
    for point in sorted(entry_points(group=_GROUP), key=lambda point: point.name):
        if point.name in found:
            raise ConfigError(
                f"two extensions are named {point.name!r}, and one is of package"
                f" {_package(point)!r}. Uninstall that package"
            )
        found[point.name] = _of_another_package(point)
    return found


@cache
def tokenizer_files() -> Mapping[str, str]:
    """References of the readers of tokenizer files, by name of file."""
    return {
        name: one for each in extensions().values() for name, one in each.tokenizer_files.items()
    }


@cache
def families() -> tuple[Any, ...]:
    """All families (:class:`heddle.models.family.Family`): the core's own, then of extensions.

    The core's own are the values `FAMILY` of the files in `heddle/models/families`.
    """
    return tuple(map(refer, _family_references()))


def family_with(format: str, architecture: str) -> Any | None:
    """The family that names `architecture` in `format`, "gguf" or "hf"; None if there is none.

    It imports files one by one, first the core's and those with a name like the architecture's.
    """
    name = architecture.replace("_", "")

    def is_far(reference: str) -> bool:
        file = reference.partition(":")[0].rpartition(".")[2].replace("_", "")
        return not (reference.startswith(_FAMILIES) or name.startswith(file[:4]))

    families = map(refer, sorted(_family_references(), key=is_far))
    return next((one for one in families if architecture in getattr(one, format)), None)


@cache
def architectures(format: str) -> Mapping[str, Any]:
    """The names that families give for each architecture in `format`, "gguf" or "hf"."""
    return {name: row for family in families() for name, row in getattr(family, format).items()}


def refer(reference: str) -> Any:
    """Import the object that the text `module:name` names. Raises ImportError or AttributeError."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _family_references() -> list[str]:
    own = (f"{_FAMILIES}.{name}:FAMILY" for name in _modules_of(_FAMILIES))
    others = (one for extension in extensions().values() for one in extension.families)
    return [*own, *others]


def _own_names() -> Iterator[str]:
    if importlib.util.find_spec(_OWN) is not None:  # None in a copy of the core alone
        yield from _modules_of(_OWN)


def _modules_of(package: str) -> list[str]:
    return sorted(
        module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    )


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _of_another_package(point: EntryPoint) -> Extension:
    package = _package(point)
    try:
        extension = point.load()
    except Exception as error:
        raise ConfigError(
            f"the extension {point.name!r} of package {package!r} cannot be imported:"
            f" {type(error).__name__}: {error}. Update the package, or uninstall it"
        ) from error
    if not isinstance(extension, Extension):
        raise ConfigError(
            f"the entry point {point.name!r} of package {package!r} is a"
            f" {type(extension).__name__}, not an extension of Heddle. Update the package, or"
            " uninstall it"
        )
    return extension
