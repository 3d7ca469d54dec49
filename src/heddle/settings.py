"""Settings as a user sees them (an option, a variable, a line of help), and readers of their text.

The classes of `heddle.config`, and those of extensions, are made of settings. HEDDLE_* variables
override the values of a file, which override defaults. The CLI or a library caller resolves
settings once and passes them down. No other room reads the environment.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.defaults import SETTINGS, parsed
from heddle.doors import extensions, refer
from heddle.errors import ConfigError
from heddle.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    from heddle.parameters import Parameter

Config = TypeVar("Config", bound="DataclassInstance")

GROUPS = (
    "model",
    "memory",
    "scheduling",
    "speculation",
    "devices",
    "requests",
    "sampling",
    "network",
    "keys",
    "logging",
)
"""The groups of settings, in the order of help pages. Each row of a setting names its group."""

_NOTHING: Mapping[str, Given] = MappingProxyType({})
_SWITCH_POSITIONS = dict.fromkeys(("on", "true", "yes", "1"), True) | dict.fromkeys(
    ("off", "false", "no", "0"), False
)


def setting(default: Any, group: str, doc: str, *, secret: bool = False, **extra: Any) -> Any:
    """A field of a config class, or of a class with settings of an extension.

    Args:
        default: the default, whose type is that of the setting.
        group: one of GROUPS.
        doc: one line of help: unit, and what the default does.
        secret: whether the value is kept out of the text of the config.
        extra: `low` and `high`, the bounds; `choices`, all values; `size`, whether texts such as
            2G are numbers of bytes; `fixed`, whether requests that load models cannot change it;
            `shared`, whether all models of a process share it (then it is fixed, too);
            `live`, whether a running server can change it;
            `changes_answers`, whether answers depend on it, so that it is in their fingerprint.
    """
    return field(default=default, repr=not secret, metadata={"group": group, "doc": doc, **extra})


def validate(config: DataclassInstance) -> None:
    """Check the bounds and the choices of all settings.

    Raises:
        ConfigError: names the setting and its value.
    """
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        low, high = item.metadata.get("low"), item.metadata.get("high")
        choices = item.metadata.get("choices")
        if low is not None and not value >= low:  # NaN neither
            raise ConfigError(f"{item.name} must be at least {low}, got {value}", param=item.name)
        if high is not None and value > high:
            raise ConfigError(f"{item.name} must be at most {high}, got {value}", param=item.name)
        if choices is not None and value not in choices:
            allowed = ", ".join(choices)
            raise ConfigError(
                f"{item.name} must be one of {allowed}, got {value!r}", param=item.name
            )


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a config class as users see it: an option, a variable, a line of help.

    Attributes:
        name: the field's name.
        option: command line option, such as `--kv-cache`; a SWITCH also has a `--no-` form.
        variable: environment variable, such as `HEDDLE_KV_CACHE`.
        kind: the form of its text: NUMBER, DECIMAL, SIZE, SWITCH, TEXT, LIST (texts separated by
            commas), or PARAMETER (the default of a sampling parameter).
        default: the field's default; for a LIST, its text.
        group: one of GROUPS, by which help pages order the settings.
        doc: one line of help.
        is_fixed: whether only who starts the process can set it, and no request that loads a model.
        is_shared: whether all models of a process share it.
        is_secret: whether nobody may see its value.
        is_live: whether a running server can change it, without a restart.
    """

    name: str
    option: str
    variable: str
    kind: str
    default: float | str
    group: str
    doc: str
    is_fixed: bool
    is_shared: bool = False
    is_secret: bool = False
    is_live: bool = False

    def parse(self, text: str, source: str) -> object:
        """The value that `text` means.

        Raises:
            ConfigError: `text` has the wrong form; the message names `source`.
        """
        if self.kind == "PARAMETER":
            return parsed(self.name, text, source)
        if self.kind == "TEXT":
            return text
        if self.kind == "LIST":
            return tuple(part.strip() for part in text.split(","))
        if self.kind == "SWITCH":
            return self._parse_switch(text, source)
        if self.kind == "DECIMAL":
            return self._parse_decimal(text, source)
        try:
            return parse_size(text) if self.kind == "SIZE" else int(text)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error.message}", param=self.name) from None
        except ValueError:
            raise ConfigError(
                f"{source}: {text!r} is not a whole number", param=self.name
            ) from None

    def _parse_decimal(self, text: str, source: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ConfigError(f"{source}: {text!r} is not a number, such as 0.5", param=self.name)
        return number

    def _parse_switch(self, text: str, source: str) -> bool:
        position = _SWITCH_POSITIONS.get(text.strip().lower())
        if position is None:
            raise ConfigError(
                f"{source}: {text!r} is neither on nor off; write on or off", param=self.name
            )
        return position


def settings(config: type[Config] | Config) -> tuple[Setting, ...]:
    """The fields of a config class, in order. An instance gives its values as the defaults.

    The field with defaults of sampling parameters has a setting for each parameter. The field with
    settings of extensions has those of all extensions.
    """
    base: Any = config() if isinstance(config, type) else config
    described: list[Setting] = []
    for item in dataclasses.fields(base):
        value = getattr(base, item.name)
        if kind := item.metadata.get("extensions"):
            parts = [base.of(part) for part in of_extensions(kind)]
            described += [one for part in parts for one in settings(part)]
        elif item.metadata.get("parameters"):
            group = item.metadata["group"]
            described += [_describe_parameter(row, group, value) for row in SETTINGS.values()]
        else:
            described.append(_describe(item, value))
    return tuple(described)


def _describe_parameter(row: Parameter, group: str, values: Mapping[str, object]) -> Setting:
    return Setting(
        name=row.name,
        option="--" + row.name.replace("_", "-"),
        variable="HEDDLE_" + row.name.upper(),
        kind="PARAMETER",
        default=str(values.get(row.name, "")),
        group=group,
        is_fixed=True,
        doc=f"default of `{row.name}` in requests: {row.kind.words}",
    )


def _describe(item: dataclasses.Field[Any], default: Any) -> Setting:
    choices = item.metadata.get("choices")
    shared = item.metadata.get("shared", False)
    kind = "NUMBER" if isinstance(default, int) else "TEXT"
    if isinstance(default, bool):
        kind = "SWITCH"
    elif isinstance(default, float):
        kind = "DECIMAL"
    elif isinstance(default, tuple):
        kind, default = "LIST", ",".join(default)
    return Setting(
        name=item.name,
        option="--" + item.name.replace("_", "-"),
        variable="HEDDLE_" + item.name.upper(),
        kind="SIZE" if item.metadata.get("size") else kind,
        default=default,
        group=item.metadata["group"],
        doc=item.metadata["doc"],
        # A text without choices names a place of the machine, such as a folder.
        is_fixed=item.metadata.get("fixed", shared or (kind in ("TEXT", "LIST") and not choices)),
        is_shared=shared,
        is_secret=not item.repr,
        is_live=item.metadata.get("live", False),
    )


def of_extensions(kind: type[DataclassInstance]) -> list[type[Any]]:
    """The classes with settings of extensions that derive from `kind`."""
    return [one for one in _declared() if issubclass(one, kind)]


@cache
def _declared() -> tuple[type[Any], ...]:
    return tuple(refer(name) for one in extensions().values() for name in one.settings)


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave a setting.

    Attributes:
        value: the value.
        source: where it was given: an option, a variable, a line of a file.
    """

    value: object
    source: str


def given(
    config: type[Config] | Config,
    options: Mapping[str, str | None],
    environ: Mapping[str, str] = os.environ,
    filed: Mapping[str, Given] = _NOTHING,
) -> dict[str, Given]:
    """The settings to which somebody gave a value, by name. Arguments and errors: see `resolve`."""
    found = {}
    for setting in settings(config):
        text, source = options.get(setting.name), setting.option
        if text is None:
            text, source = environ.get(setting.variable) or None, setting.variable
        if text is not None:
            found[setting.name] = Given(setting.parse(text, source), source)
        elif setting.name in filed:
            found[setting.name] = filed[setting.name]
    return found


def resolve(
    config: type[Config] | Config,
    options: Mapping[str, str | None],
    environ: Mapping[str, str] = os.environ,
    filed: Mapping[str, Given] = _NOTHING,
) -> Config:
    """Resolve settings: an option wins over a HEDDLE_* variable, that over a file, that over the
    default.

    Defaults come from a class, or from the values of an instance. `options` holds option texts by
    field name, None for an option that was not given. An empty variable counts as not set. `filed`
    holds the values of a file by field name.

    Raises:
        ConfigError: a text has the wrong form or its value is out of range; the message names the
            option, variable or line that it came from.
    """
    known = given(config, options, environ, filed)
    try:
        return _changed(
            config() if isinstance(config, type) else config,
            {name: one.value for name, one in known.items()},
        )
    except ConfigError as error:
        wrong = known.get(error.param or "")  # None if the base has the value
        said = f"{wrong.source}: {error.message}" if wrong else error.message
        raise ConfigError(said, param=error.param) from None


def _changed(config: Config, values: Mapping[str, Any]) -> Config:
    """A copy of the config with these values of settings, each where it belongs."""
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.name in values:
            changes[item.name] = values[item.name]
        elif item.metadata.get("parameters"):
            given = {name: values[name] for name in SETTINGS.keys() & values.keys()}
            changes[item.name] = {**value, **given}
        elif kind := item.metadata.get("extensions"):
            parts = {type(one): one for one in value}
            parts |= {part: parts.get(part, part()) for part in of_extensions(kind)}
            changes[item.name] = tuple(_changed(part, values) for part in parts.values())
    return dataclasses.replace(config, **changes)


def debug_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether HEDDLE_DEBUG asks for tracebacks and for log messages of level DEBUG."""
    return environ.get("HEDDLE_DEBUG", "") not in {"", "0"}
