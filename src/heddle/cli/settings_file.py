"""Settings from a file, `heddle.toml`: where it is, and what it says.

The names and the types of keys are those of the settings, so a new setting is a key without a line
here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from heddle.errors import ConfigError
from heddle.folders import user_path
from heddle.settings import Given

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from heddle.settings import Setting

VARIABLE = "HEDDLE_CONFIG"
NAME = "heddle.toml"
_SYSTEM = Path("/etc/heddle")
_MOST_BYTES = 1 << 20
"""Most bytes of a file. Without a limit, the read of a device would not end."""
_SHOWN = 40
"""Most characters of a wrong value in an error."""
_MODELS, _DEFAULT, _SOURCE = "models", "default", "source"
"""Keys that are no settings: what `heddle serve` serves."""

_FORMS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "NUMBER": ((int,), "a whole number"),
    "DECIMAL": ((int, float), "a number"),
    "SIZE": ((int, str), 'a number of bytes, or a text such as "2G"'),
    "SWITCH": ((bool,), "true or false"),
    "TEXT": ((str,), "a text in quotes"),
    "LIST": ((list,), 'a list of texts, such as ["one", "two"]'),
    "PARAMETER": ((int, float, str, list), "a number, a text or a list of texts"),
}
"""What a file may hold for a setting, by its kind: types of TOML, and words for errors."""


@dataclass(frozen=True, slots=True)
class FiledModel:
    """A model that the file names.

    Attributes:
        source: its path, alias or name of the hub.
        name: its name in requests; None: the one that its source gives it.
        settings: its own settings, by name.
    """

    source: str
    name: str | None = None
    settings: Mapping[str, Given] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a file says; nothing without a file.

    Attributes:
        path: the file; None: there is none.
        settings: settings by name.
        models: models to serve.
        default: the model for requests that name none.
        shows_secrets: whether other users of the machine can read secrets in it.
    """

    path: Path | None = None
    settings: Mapping[str, Given] = field(default_factory=dict)
    models: tuple[FiledModel, ...] = ()
    default: str | None = None
    shows_secrets: bool = False


def places(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where a file is sought that nobody names: the user's folder of settings, then the system's.

    The working folder is not among them, because a stranger may have written the files in it.
    """
    import platformdirs

    own = environ.get("XDG_CONFIG_HOME")
    folder = Path(own) / "heddle" if own else Path(platformdirs.user_config_dir("heddle"))
    return [folder / NAME, _SYSTEM / NAME]


def find(named: str | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file of settings: the one of --config, else of HEDDLE_CONFIG, else the first of `places`.

    Raises:
        ConfigError: the name begins with the home folder of an unknown user.
    """
    if named is not None:
        return user_path(named, "--config")
    if variable := environ.get(VARIABLE):
        return user_path(variable, VARIABLE)
    return next(filter(_is_there, places(environ)), None)


def _is_there(path: Path) -> bool:
    """Whether there is a file, also one that this user may not see: it may hold the keys."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def read(path: Path | None, known: Iterable[Setting], of_models: Iterable[Setting]) -> SettingsFile:
    """Read a file.

    Args:
        path: the file; None: there is none.
        known: the settings that it may have.
        of_models: those of them that the table of a model may have.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has a key that is unknown or whose
            value has another type. The message names file, line and key.
    """
    if path is None:
        return SettingsFile()
    return _Reader(path, known, of_models).read()


class _Reader:
    """Reads one file."""

    def __init__(self, path: Path, known: Iterable[Setting], of_models: Iterable[Setting]) -> None:
        self._path = path
        self._known = {one.name: one for one in known}
        self._of_models = {one.name: one for one in of_models}
        self._text, self._mode = _text(path)
        self._lines = self._text.splitlines(keepends=True)

    def read(self) -> SettingsFile:
        content = _parsed(self._path, self._text)
        models = self._models(content.pop(_MODELS, []))
        default = content.pop(_DEFAULT, None)
        if not (default is None or isinstance(default, str)):
            self._refuse((_DEFAULT,), f"{_DEFAULT} must be the name of a model, got {default!r}")
        settings = {
            name: self._given((name,), value, self._known) for name, value in content.items()
        }
        has_secrets = any(self._known[name].is_secret for name in settings)
        shows_secrets = has_secrets and bool(self._mode & 0o044)
        return SettingsFile(self._path, settings, models, default, shows_secrets)

    def _models(self, content: Any) -> tuple[FiledModel, ...]:
        if isinstance(content, dict):
            return tuple(self._model(name, table) for name, table in content.items())
        if not (isinstance(content, list) and all(isinstance(one, str) for one in content)):
            self._refuse(
                (_MODELS,), f"{_MODELS} must be a list of texts, or a table for each: [models.NAME]"
            )
        return tuple(map(FiledModel, content))

    def _model(self, name: str, table: Any) -> FiledModel:
        source = table.pop(_SOURCE, None) if isinstance(table, dict) else None
        if not isinstance(source, str):
            self._refuse(
                (_MODELS, name),
                f"the table of model {name!r} must say where the model is:"
                ' source = "ORG/NAME", or a path',
            )
        settings = {
            key: self._given((_MODELS, name, key), value, self._of_models)
            for key, value in table.items()
        }
        return FiledModel(source, name, settings)

    def _given(self, keys: tuple[str, ...], value: Any, known: Mapping[str, Setting]) -> Given:
        setting = known.get(keys[-1])
        if setting is None:
            self._refuse(keys, self._why_unknown(keys[-1], known))
        types, words = _FORMS[setting.kind]
        fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        if isinstance(value, list):
            fits = fits and all(isinstance(one, (str, int)) for one in value)
        if not fits:
            got = "" if setting.is_secret else f", got {_short(value)}"
            self._refuse(keys, f"{setting.name} must be {words}{got}")
        place = self._place(keys)
        if setting.kind == "LIST":
            return Given(tuple(map(str, value)), place)
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        return Given(setting.parse(text, place), place)

    def _why_unknown(self, name: str, known: Mapping[str, Setting]) -> str:
        if name in self._known:
            return f"{name} is no setting of one model; write it above the tables of models"
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=1)
        nearest = f"; the nearest name is {near[0]}" if near else ""
        return f"there is no setting {name!r}{nearest}"

    def _refuse(self, keys: tuple[str, ...], why: str) -> NoReturn:
        raise ConfigError(f"{self._place(keys)}: {why}", param=keys[-1])

    def _place(self, keys: tuple[str, ...]) -> str:
        """The file, and the line on which a key stands if it stands there by its plain name.

        TOML's parser tells no lines. What stands before a key is a file of its own without the key.
        What stands before a later line has the key, or ends inside of its value.
        """
        for number in range(len(self._lines) - 1, -1, -1):
            if keys[-1] in self._lines[number] and self._lacks(number, keys):
                return f"{self._path}:{number + 1}"
        return str(self._path)

    def _lacks(self, number: int, keys: tuple[str, ...]) -> bool:
        try:
            part: Any = _parsed(self._path, "".join(self._lines[:number]))
        except ConfigError:
            return False
        for key in keys:
            if not (isinstance(part, dict) and key in part):
                return True
            part = part[key]
        return False


def _parsed(path: Path, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a file in TOML: {error}", param="config") from None


def _text(path: Path) -> tuple[str, int]:
    """The text of a file, and who may read it."""
    try:
        with path.open("rb") as file:
            raw, mode = file.read(_MOST_BYTES + 1), os.fstat(file.fileno()).st_mode
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"the file of settings {str(path)!r} cannot be read: {reason}. Mend it, or name another"
            f" one with --config; {VARIABLE}=/dev/null reads none",
            param="config",
        ) from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"{path} is longer than {_MOST_BYTES:,} bytes", param="config")
    return text, mode


def _short(value: object) -> str:
    said = repr(value)
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."
