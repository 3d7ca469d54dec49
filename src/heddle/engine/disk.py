"""Opens the disk tier of a model, and computes the fingerprint of everything that its pages depend
on."""

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
        model_and_program = fingerprint(model)
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


def fingerprint(model: LoadedModel) -> bytes:
    """32 bytes that are equal only if the same tokens give the same pages, bit for bit.

    They cover all bytes of the model's files, because a finetune may have the name, size and time
    of its parent. Reading takes 0.6 s per GB once a file is in memory. The page format covers the
    program, so the fingerprint covers the program too.

    Raises:
        ModelFileError: a file has changed since it was loaded, so its digest says nothing about the
            weights in memory.
        OSError: a file cannot be read.
    """
    digests = []
    for path in sorted(model.info.stamps) or [model.info.path]:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    weights = " ".join(digests)
    # Checked after reading, so that a change before or during the reading is seen.
    if model.file_state() not in ("unchanged", None):
        raise ModelFileError(
            f"{model.info.path} has changed since it was loaded; load it again", field="file"
        )
    return hashlib.sha256(f"{weights} {model.executor.page_format}".encode()).digest()
