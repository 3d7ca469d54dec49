"""Opens the disk tier of a model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from heddle.disk.directory import DirectoryInUseError, PageDirectory
from heddle.disk.tier import DiskTier
from heddle.errors import ModelFileError
from heddle.folders import user_path
from heddle.loading.fingerprint import pages_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig
    from heddle.loading.loaded_model import LoadedModel

_log = logging.getLogger(__name__)


def open_disk_tier(
    model: LoadedModel, config: EngineConfig, on_read: Callable[[], None]
) -> DiskTier | None:
    """Open the disk tier. None if the settings do not ask for it, or it is not available now.

    It is not available if another process uses the directory, or the model's file is missing.

    Raises:
        ConfigError: the directory cannot be used.
    """
    if not config.prefix_cache_dir:
        return None
    path = user_path(config.prefix_cache_dir, "prefix_cache_dir")
    try:
        directory = PageDirectory(path, config.prefix_cache_disk)
    except DirectoryInUseError as error:
        _log.warning("the prefix cache continues without its disk tier: %s", error)
        return None
    try:
        model_and_program = pages_fingerprint(model)
    except (OSError, ModelFileError) as error:
        directory.close()
        _log.warning("the prefix cache continues without its disk tier: %s", error)
        return None
    memory = model.executor.memory
    return DiskTier(
        directory,
        model.executor,
        memory.token_page_bytes,
        model_and_program,
        on_read,
        snapshot_bytes=memory.snapshot_bytes,
    )
