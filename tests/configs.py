"""Configs from values of settings by name, also of those that extensions bring."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from heddle.config import EngineConfig, EngineSettings, ServerConfig, ServerSettings
from heddle.settings import of_extensions


def configured(
    config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
    **values: Any,
) -> EngineConfig:
    """A copy of the config with other values."""
    return _changed(config, EngineSettings, values)


def server_config(**values: Any) -> ServerConfig:
    """A config of a server with these values."""
    return _changed(ServerConfig(), ServerSettings, values)


def _changed(config: Any, kind: Any, values: dict[str, Any]) -> Any:
    for part in of_extensions(kind):
        own = {one.name: values.pop(one.name) for one in fields(part) if one.name in values}
        if own:
            config = config.having(replace(config.of(part), **own))
    return replace(config, **values)
