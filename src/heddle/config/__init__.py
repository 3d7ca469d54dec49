"""The settings, as frozen classes. Every setting has a default, a group and a line of help.

A config carries the settings of extensions beside its own: `EngineConfig(slots=2,
extensions=(DrafterSettings(draft="small"),))`. No class here names one of them.
"""

from heddle.config.engine import EngineConfig, EngineSettings
from heddle.config.hub import DEFAULT_MODEL, HubConfig
from heddle.config.registry import RegistryConfig
from heddle.config.server import MAX_MODEL_NAME, ServerConfig, ServerSettings, check_keys

__all__ = [
    "DEFAULT_MODEL",
    "MAX_MODEL_NAME",
    "EngineConfig",
    "EngineSettings",
    "HubConfig",
    "RegistryConfig",
    "ServerConfig",
    "ServerSettings",
    "check_keys",
]
