"""SIGHUP: a running server reads its file of settings and its files of keys again.

Settings that are `live` change at once. The log names the others, which need a restart. A file that
is wrong changes nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.config import EngineConfig, RegistryConfig, ServerConfig
from heddle.errors import HeddleError
from heddle.settings import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from heddle.cli.options import Sources
    from heddle.cli.settings_file import FiledModel
    from heddle.hosting.registry import Registry
    from heddle.server.http.keys import Keys
    from heddle.settings import Setting

_CONFIGS: tuple[type[Any], ...] = (EngineConfig, RegistryConfig, ServerConfig)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Changeable:
    """What a running server changes.

    Attributes:
        registry: its models.
        use_keys: lets it know other keys.
        set_level: changes the lowest level of lines in the log.
    """

    registry: Registry
    use_keys: Callable[[Keys], None]
    set_level: Callable[[str], None]


class Reload:
    """Changes a running server to what its file says."""

    def __init__(self, changeable: Changeable, sources: Sources) -> None:
        self._changeable = changeable
        self._sources = sources
        self._effective = self._values(sources)

    def run(self) -> None:
        """Read the file again and change what can change. Logs the result, also that of an error.

        A setting that needs a restart is named each time, until the restart.
        """
        try:
            said = self._change()
        except HeddleError as error:
            _log.error("the settings stay as they are: %s", error.message)
        except Exception:
            _log.exception("the settings stay as they are")
        else:
            _log.warning("read the settings again: %s", said)

    def _change(self) -> str:
        from heddle.server.http.keys import keys_of

        sources = self._sources.read_again()
        now = self._values(sources)
        server = sources.resolve(ServerConfig())
        keys = keys_of(server)
        live = {one.name for one in _settings() if one.is_live}
        both = now.keys() & self._effective.keys()  # `models` differs if one has a table more
        changed = {key for key in both if now[key] != self._effective[key]}
        can = {key for key in changed if key[1] in live}
        # Nothing is refused from here on.
        self._changeable.use_keys(keys)
        if ("", "log_level") in can:
            self._changeable.set_level(server.log_level)
        self._change_limits({key: now[key] for key in can})
        self._sources = sources
        self._effective |= {key: now[key] for key in can}
        return self._said(now, changed, can, keys)

    def _change_limits(self, values: Mapping[tuple[str, str], Any]) -> None:
        """Change limits of models: those of the tables, and of all models without a table."""
        registry, limits = self._changeable.registry, {one.name for one in settings(EngineConfig)}
        by_model: dict[str, dict[str, Any]] = {}
        for (model, name), value in values.items():
            if name in limits:
                by_model.setdefault(model, {})[name] = value
        general = by_model.pop("", {})
        tables = {model for model, _ in self._effective if model}
        if general:
            registry.change_limits(None, **general)
        for name in registry.names:
            changes = by_model.get(name, {}) if name in tables else general
            if changes:
                try:
                    registry.change_limits(name, **changes)
                except HeddleError as error:
                    _log.warning("%s keeps its limits: %s", name, error.message)

    def _said(
        self,
        now: Mapping[tuple[str, str], Any],
        changed: set[tuple[str, str]],
        can: set[tuple[str, str]],
        keys: Keys,
    ) -> str:
        secret = {one.name for one in _settings() if one.is_secret}
        done = [
            _named(key) if key[1] in secret else f"{_named(key)} is {now[key]!r}"
            for key in sorted(can)
        ]
        cannot = ", ".join(map(_named, sorted(changed - can)))
        parts = [f"changed: {', '.join(done) or 'nothing'}", f"keys: {keys.count}"]
        return "; ".join([*parts, f"a restart changes {cannot}"] if cannot else parts)

    def _values(self, sources: Sources) -> dict[tuple[str, str], Any]:
        """The value of each setting, by model (empty: of all) and name.

        Raises:
            ConfigError: they are wrong.
        """
        found: dict[tuple[str, str], Any] = {("", "default"): sources.file.default}
        for config in _CONFIGS:
            found |= {("", name): value for name, value in _flat(sources.resolve(config())).items()}
        found["", "models"] = [(one.name, one.source) for one in sources.file.models]
        for model in sources.file.models:
            if model.name is not None:
                found |= self._of_model(sources, model)
        return found

    def _of_model(self, sources: Sources, model: FiledModel) -> dict[tuple[str, str], Any]:
        values = _flat(sources.resolve(EngineConfig(), model))
        return {(model.name or "", name): value for name, value in values.items()}


def _settings() -> list[Setting]:
    return [one for config in _CONFIGS for one in settings(config)]


def _flat(config: Any) -> dict[str, Any]:
    """The value of each setting of a config, those of extensions included."""
    return {one.name: one.default for one in settings(config)}


def _named(key: tuple[str, str]) -> str:
    return ".".join(filter(None, ("models" if key[0] else "", *key)))


@contextmanager
def reload_at_hangup(reload: Reload) -> Iterator[None]:
    """While the block runs, SIGHUP runs a reload, in a thread.

    The handler only wakes the thread: the main thread may hold a lock that the reload needs. A
    terminal that closes stops the server, as it does without a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted, ended = threading.Event(), threading.Event()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
    had_terminal = not ignored and _has_terminal()

    def wake(*_: object) -> None:
        if had_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            wanted.set()

    def run() -> None:
        while wanted.wait() and not ended.is_set():
            wanted.clear()
            reload.run()

    threading.Thread(target=run, name="heddle-reload", daemon=True).start()
    former = signal.signal(signal.SIGHUP, wake)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, former)
        ended.set()
        wanted.set()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
