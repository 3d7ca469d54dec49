"""`heddle config`: the settings that a server would have, and where each comes from."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import typer

from heddle.cli.options import AsJson, Sources, with_settings
from heddle.cli.settings_file import FiledModel
from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError
from heddle.settings import Given, Setting, settings
from heddle.sizes import format_size

_MASK = "***"
_DEFAULT, _MACHINE = "default", "machine"


@dataclass(frozen=True, slots=True)
class _Row:
    """A setting with its value in the form of TOML; None: that of the model."""

    name: str
    value: Any
    source: str
    is_secret: bool = False

    @property
    def text(self) -> str:
        """The value as a file may have it."""
        return "the model's" if self.value is None else json.dumps(self.value, ensure_ascii=False)

    @property
    def line(self) -> str:
        """The line of a file. It is a comment if the value is that of nobody, or secret."""
        given = self.source not in (_DEFAULT, _MACHINE) and not self.is_secret
        return f"{'' if given else '# '}{self.name} = {self.text}  # {self.source}"


@with_settings
def config(
    *,
    as_json: AsJson = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print a heddle.toml. Defaults are comments in it.")
    ] = False,
    server: ServerConfig,
    registry: RegistryConfig,
    engine: EngineConfig,
    sources: Sources,
) -> None:
    """Show the settings of `heddle serve`, and where each comes from. Secrets are masked."""
    from heddle.cli.text_table import text_table

    if as_json and as_toml:
        raise ConfigError("--json and --toml exclude each other; leave one out", param="json")
    engine.check()
    rows = [
        row
        for one in (engine, registry, server)
        for row in _rows(type(one)(), sources, _derived(engine))
    ]
    rows += _of_serve(sources)
    models = {one.name: _of_model(one, sources) for one in sources.file.models if one.name}
    if as_json:
        print(json.dumps(_shown(rows, models, sources), indent=2))
    elif as_toml:
        print("\n".join(row.line for row in rows if row.value is not None))
        for name, own in models.items():
            print(f"\n[models.{json.dumps(name, ensure_ascii=False)}]")
            print("\n".join(row.line for row in own))
    else:
        lines = [(row.name, row.text, row.source) for row in rows]
        for name, own in models.items():
            lines += [(f"models.{name}.{row.name}", row.text, row.source) for row in own]
        print(text_table(("setting", "value", "from"), lines))
        print(f"\nfile: {sources.file.path or 'none'}")


def _of_serve(sources: Sources) -> list[_Row]:
    """What the file serves beside models with tables."""
    file, path = sources.file, str(sources.file.path)
    listed = [one.source for one in file.models if one.name is None]
    rows = [_Row("models", listed, path)] if listed else []
    return [*rows, _Row("default", file.default, path)] if file.default is not None else rows


def _of_model(model: FiledModel, sources: Sources) -> list[_Row]:
    own = [
        _row(setting, model.settings[setting.name])
        for setting in settings(EngineConfig)
        if setting.name in model.settings
    ]
    return [_Row("source", model.source, str(sources.file.path)), *own]


def _derived(engine: EngineConfig) -> dict[str, Given]:
    """The settings that the machine decides, or variables of the hub."""
    from heddle.cores import usable_cores
    from heddle.hub_place import hub_place

    place, found = hub_place(engine), {}
    if not engine.threads:
        found["threads"] = Given(usable_cores(), _MACHINE)
    if not engine.hub_cache:
        found["hub_cache"] = Given(str(place.cache), _MACHINE)
    if place.offline and not engine.offline:
        found["offline"] = Given(True, "HF_HUB_OFFLINE")
    return found


def _rows(config: Any, sources: Sources, derived: dict[str, Given]) -> list[_Row]:
    known = {**sources.given(config), **derived}
    return [_row(setting, known.get(setting.name)) for setting in settings(config)]


def _row(setting: Setting, known: Given | None) -> _Row:
    if known is None:
        default: Any = setting.default
        if setting.kind == "PARAMETER":
            default = None
        elif setting.kind == "LIST":
            default = [part for part in str(default).split(",") if part]
        return _Row(setting.name, _plain(setting, default), _DEFAULT)
    if setting.is_secret:
        return _Row(setting.name, [_MASK] * len(_listed(known.value)), known.source, True)
    return _Row(setting.name, _plain(setting, known.value), known.source)


def _plain(setting: Setting, value: Any) -> Any:
    """A value as TOML and JSON have it."""
    if setting.kind == "SIZE":
        text = format_size(int(value))
        return int(text) if text.isdecimal() else text
    if isinstance(value, (tuple, list)):
        return [one.value if isinstance(one, Enum) else one for one in value]
    return value


def _listed(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


def _shown(rows: list[_Row], models: dict[str, list[_Row]], sources: Sources) -> dict[str, Any]:
    """The object of --json."""

    def described(rows: list[_Row]) -> dict[str, Any]:
        return {row.name: {"value": row.value, "from": row.source} for row in rows}

    path = sources.file.path
    return {
        "file": None if path is None else str(path),
        "settings": described(rows),
        "models": {name: described(table) for name, table in models.items()},
    }
