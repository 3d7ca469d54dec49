"""Checks of the machine: processors, memory, disks, limits, devices. Startup knows the figures."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from heddle import _native
from heddle.cgroups import cpu_quota
from heddle.cores import choose_cores
from heddle.errors import ConfigError
from heddle.executors.devices import devices, loader
from heddle.extensions.doctor.findings import Finding, State
from heddle.folders import cache_home, user_path
from heddle.hub_place import hub_place
from heddle.process_memory import available_bytes, machine_memory
from heddle.server.http.protocol import most_connections
from heddle.sizes import counted, format_size, gigabytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heddle.config import EngineConfig

_SMALL_MODEL = 1 << 30
"""Bytes that the default model takes with its KV cache, roughly."""
_LITTLE_DISK = 5 * 10**9
_FEW_FILES = 1024
_NVIDIA = Path("/proc/driver/nvidia/gpus")
"""The kernel's list of GPUs, also where torch is not installed."""


def cores(config: EngineConfig) -> Iterator[Finding]:
    """The cores that compute, and why others do not."""
    chosen, quota = choose_cores(), cpu_quota()
    here = f"{counted(len(chosen.numbers), 'core')} for compute threads{chosen.note}"
    if config.threads > len(chosen.numbers):
        said = f"threads is {config.threads}, and there are {here}"
        yield Finding("cores", said, State.WARN, "set threads to 0: one per core is fastest")
    elif quota is not None and quota < 1:
        said = f"the CPU quota of this container is {quota:.2g} of a processor"
        yield Finding("cores", said, State.WARN, "streams stand still in between; raise the quota")
    else:
        yield Finding("cores", here)


def levels(config: EngineConfig) -> Iterator[Finding]:
    """The instruction levels of the native core."""
    known = _native.isa_levels()
    said = f"instruction levels {', '.join(known)}; Python {sys.version.split()[0]}"
    if config.isa not in ("auto", *known):
        advice = "set isa to auto, or to one of these levels"
        yield Finding("levels", f"isa is {config.isa}; {said}", State.FAIL, advice)
    elif known == ["portable"]:
        advice = "models run, but slowly; a processor with AVX2, or NEON, is several times as fast"
        yield Finding("levels", said, State.WARN, advice)
    else:
        yield Finding("levels", said)


def memory(config: EngineConfig) -> Iterator[Finding]:
    """The memory that a load may take."""
    free, machine = available_bytes(), machine_memory()
    said = f"{gigabytes(free)} free"
    if machine is not None:
        said += f" of {gigabytes(machine.total)}"
    keep = config.min_free_memory
    if free < keep:
        advice = f"a load would be refused: it must leave {format_size(keep)} (min_free_memory)"
        yield Finding("memory", said, State.FAIL, f"{advice}. End other programs, or lower it")
    elif free < keep + _SMALL_MODEL:
        yield Finding("memory", said, State.WARN, "only tiny models fit; end other programs")
    else:
        yield Finding("memory", f"{said}; heddle suggest names models that fit")


def disks(config: EngineConfig) -> Iterator[Finding]:
    """The folders for models: whether they can be written, and what is free."""
    folders: dict[str, Callable[[], Path]] = {
        "HEDDLE_HOME": cache_home,
        "hub cache": lambda: hub_place(config).cache,
    }
    if config.prefix_cache_dir:
        folders["prefix cache"] = lambda: user_path(config.prefix_cache_dir, "prefix_cache_dir")
    for check, find in folders.items():
        try:
            yield _disk(check, find())
        except ConfigError as error:
            yield Finding(check, error.message, State.FAIL, "name a folder that you may write to")


def _disk(check: str, folder: Path) -> Finding:
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        advice = f"make {there} a folder that you may write to, or name another one"
        return Finding(check, f"{folder} cannot be written", State.FAIL, advice)
    free = shutil.disk_usage(there).free
    said = f"{folder}, {gigabytes(free)} free"
    if free < _LITTLE_DISK:
        advice = "larger models do not fit; heddle list and heddle rm show and delete models"
        return Finding(check, said, State.WARN, advice)
    return Finding(check, said)


def limits(_config: EngineConfig) -> Iterator[Finding]:
    """Limits of the process."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = f"{_amount(files)} open files: {most_connections()} connections at once"
    if files != resource.RLIM_INFINITY and files < _FEW_FILES:
        advice = "raise it: ulimit -n 65536, or LimitNOFILE= in a unit of systemd"
        yield Finding("open files", said, State.WARN, advice)
    else:
        yield Finding("open files", said)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    said = f"{_amount(locked)} bytes may be locked; Heddle locks none itself"
    yield Finding("locked memory", said)


def _amount(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def gpus(config: EngineConfig) -> Iterator[Finding]:
    """The devices of extensions. One that is missing matters if the settings name it."""
    wanted, _, _ = config.device.partition(":")
    has_gpu = _NVIDIA.is_dir() and any(_NVIDIA.iterdir())
    for name, device in devices().items():
        if not (device.extra or name == wanted):
            continue
        try:
            loader(config.device if name == wanted else name)
        except ConfigError as error:
            state = State.OK
            if name == wanted:
                state = State.FAIL
            elif has_gpu and name == "cuda":
                state = State.WARN
            said, _, advice = error.message.partition("; ")
            yield Finding(f"device {name}", said, state, advice if state != State.OK else "")
        else:
            yield Finding(f"device {name}", "can compute models")
