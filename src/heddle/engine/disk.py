"""Opens the disk tier for a model: the directory, and what the bytes of its pages depend on."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from heddle.config import user_path
from heddle.disk.directory import DirectoryInUseError, PageDirectory
from heddle.disk.tier import DiskTier
from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig
    from heddle.engine.loading import LoadedModel

_log = logging.getLogger(__name__)


def open_disk_tier(
    model: LoadedModel, config: EngineConfig, on_read: Callable[[], None]
) -> DiskTier | None:
    """The tier that the settings ask for; None if they ask for none, or it cannot be had now.

    Another process may have the directory, or the model's file may be gone.

    Raises:
        ConfigError: the directory cannot be used.
    """
    if not config.prefix_cache_dir:
        return None
    path = user_path(config.prefix_cache_dir, "prefix_cache_dir")
    try:
        directory = PageDirectory(path, config.prefix_cache_disk)
    except DirectoryInUseError as error:
        _log.warning("the prefix cache goes on without its disk tier: %s", error)
        return None
    try:
        model_and_program = fingerprint(model)
    except (OSError, ModelFileError) as error:
        directory.close()
        _log.warning("the prefix cache goes on without its disk tier: %s", error)
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


def fingerprint(model: LoadedModel) -> bytes:
    """32 bytes that are equal only if the same tokens give the same pages, bit for bit.

    They cover all bytes of the model's files (0.6 s a GB once it is in memory: name, size and time
    would take a finetune for its parent some day) and, by the format, the program.

    Raises:
        ModelFileError: the file has changed since it was loaded: its digest says nothing about the
            weights in memory.
        OSError: it cannot be read.
    """
    digests = []
    for path in sorted(model.info.stamps) or [model.info.path]:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    weights = " ".join(digests)
    if model.file_state() not in ("unchanged", None):  # after it was read, so that both are covered
        raise ModelFileError(
            f"{model.info.path} has changed since it was loaded; load it again", field="file"
        )
    return hashlib.sha256(f"{weights} {model.executor.page_format}".encode()).digest()
