"""Describes the machine of a measurement."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.cores import choose_cores
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

_X86_FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "amx_int8")
_FLAGS = (*_X86_FLAGS, "asimddp", "i8mm")


def describe(*packages: str) -> dict[str, Any]:
    """CPU model, cores, relevant instruction sets, memory, system, and versions.

    `cores` counts those that compute by default. `cores_note` says which of the processors are left
    out (`Cores.note`). The versions are of `packages`; None for a package that is not installed.
    """
    cores = choose_cores()
    fields = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        first = cpuinfo.read_text().split("\n\n", 1)[0]
        fields = {k.strip(): v.strip() for k, _, v in (x.partition(":") for x in first.split("\n"))}
    flags = fields.get("flags", fields.get("Features", "")).split()  # of x86, of ARM
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "cores": len(cores.numbers),
        "cores_note": cores.note.strip(),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
    }


def cores_of(machine: Mapping[str, Any]) -> str:
    """The cores of a description, such as `16 cores (of 32 processors: hyper-threads left out)`."""
    return f"{counted(machine['cores'], 'core')} {machine['cores_note']}".rstrip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
