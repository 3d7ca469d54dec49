"""Loads a model in a process of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from heddle.doors import refer
from heddle.extensions.processes.children.places import place
from heddle.extensions.processes.children.versions import files_digest
from heddle.extensions.processes.executor import DeviceProcess, ProcessExecutor
from heddle.extensions.processes.messages import LoadOrder
from heddle.extensions.processes.sent_config import SentConfig
from heddle.extensions.processes.settings import ProcessSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig
    from heddle.executor import Executor
    from heddle.weights.checkpoint import Checkpoint


def load_in_process(
    load: str,
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Callable[[int], None] = lambda loaded: None,
    **options: Any,
) -> Executor:
    """Start a process that loads the files of `checkpoint`; see `Load` in `executors/devices.py`.

    `load` is the reference of the device's own function, and `options` are further keywords for
    it. Where ranks start on other machines, this process loads: it is a replica's own already.

    Raises: as `Load`; EngineFailedError: the process does not start, or has ended.
    """
    if place().address:
        loaded: Executor = refer(load)(checkpoint, config, progress, **options)
        return loaded
    level = logging.getLogger("heddle").getEffectiveLevel()
    files = files_digest(checkpoint)
    order = LoadOrder(str(checkpoint.path), files, SentConfig.of(config), load, options, level)
    process = DeviceProcess(config.device, config.of(ProcessSettings).rank_timeout)
    try:
        return ProcessExecutor(process, process.load(order, progress))
    except BaseException:
        process.close()
        raise
