"""One model that a server quantises in a child process, and the reports about it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle import errors
from heddle.errors import (
    FileFormatError,
    ForbiddenError,
    HeddleError,
    InvalidRequestError,
    ModelLoadedError,
    ModelSourceError,
)
from heddle.weights.formats import name_of
from heddle.weights.gguf.split import part_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.hosting.registry import Registry

Json = dict[str, Any]

_COMMAND = [sys.executable, "-m", "heddle.extensions.quantise.child"]
_SUFFIX = ".gguf"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_WORK = ".heddle-quantise-"
"""Begins the names of folders in which files are written. They get their place when complete."""


def target_of(registry: Registry, name: str) -> Path:
    """The path of a new file in the models' folder.

    Raises:
        ForbiddenError: the server has no such folder.
        InvalidRequestError: `name` is no plain name of a file, or something has it already.
    """
    folder = registry.allowed.folder
    if folder is None:
        raise ForbiddenError(
            "requests may write no files; start the server with --models-dir, the folder for them",
            param="name",
        )
    path = folder / (name if name.endswith(_SUFFIX) else name + _SUFFIX)
    if not _NAME.fullmatch(name) or part_names(path.name) != (path.name,):
        raise InvalidRequestError(
            "name must be a file name of 1 to 200 letters, digits and . _ + -, which begins with a"
            f" letter or digit and is no part of a split model, got {name[:80]!r}",
            param="name",
        )
    if os.path.lexists(path) or name_of(path) in registry:
        raise _taken(path)
    return path


def _taken(path: Path) -> InvalidRequestError:
    return InvalidRequestError(
        f"name: there is a model or a file {path.name!r} already; choose another name", param="name"
    )


class Quantisation:
    """A child process that quantises a model, and the thread that waits for it."""

    def __init__(
        self,
        registry: Registry,
        model: str,
        target: Path,
        asked: Json,
        on_end: Callable[[], None],
    ) -> None:
        """
        Args:
            registry: knows the new model at the end.
            model: name of the source, for reports.
            target: the new file.
            asked: the arguments of `child.quantise` but `target`.
            on_end: called when nothing of the work is left but the new file.
        """
        self._registry = registry
        self._model = model
        self._target = target
        self._asked = asked
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._reports: asyncio.Queue[Json | HeddleError] = asyncio.Queue()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_cancelled = False

    def start(self) -> None:
        """Start the thread, which starts the process."""
        threading.Thread(target=self._run, name="heddle-quantise", daemon=True).start()

    def cancel(self) -> None:
        """Kill the process. The thread deletes what the process has written."""
        self._is_cancelled = True
        if (process := self._process) is not None:
            process.kill()

    async def report(self) -> Json:
        """Wait for the next report. The last one has the status `success`.

        Raises:
            HeddleError: the model was not quantised.
        """
        report = await self._reports.get()
        if isinstance(report, HeddleError):
            raise report
        return report

    async def result(self) -> Json:
        """Wait for the last report. Raises as :meth:`report`."""
        while (report := await self.report())["status"] != "success":
            pass
        return report

    def _run(self) -> None:
        outcome: Json | HeddleError
        try:
            outcome = self._quantise()
        except HeddleError as error:
            outcome = error
        except OSError as error:
            reason = error.strerror or error
            outcome = ModelSourceError(f"cannot write to {self._target.parent}: {reason}")
        self._on_end()
        self._put(outcome)

    def _quantise(self) -> Json:
        folder, name = self._target.parent, self._target.name
        with tempfile.TemporaryDirectory(
            prefix=_WORK, dir=folder, ignore_cleanup_errors=True
        ) as work:
            made = Path(work, name)
            outcome = self._outcome_of({**self._asked, "target": str(made)})
            _place(made, self._target)
        model = name_of(self._target)
        with suppress(ModelLoadedError):  # another request has made the file known
            self._registry.add(self._target, name=model)
        return {"status": "success", "model": model, "file": name, **outcome}

    def _outcome_of(self, asked: Json) -> Json:
        """Run the process, and pass its reports on. Returns the last one.

        Raises:
            HeddleError: of the process.
        """
        with subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            process_group=0,  # only the server gets an interrupt from the keyboard
        ) as process:
            self._process = process
            if self._is_cancelled:  # before the process started
                process.kill()
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                process.stdin.flush()
            last: Json = {}
            for line in process.stdout:  # until the process ends: it watches its input to the end
                last = json.loads(line)
                if "total" in last:
                    self._put({"status": f"quantising {self._model}", **last})
        if "error" in last:
            raise _raised(*last["error"])
        if "bytes" not in last:
            raise HeddleError(
                f"the process that quantises ended with status {process.returncode}; perhaps the"
                " memory did not suffice. Unload a model, or try again later"
            )
        return last

    def _put(self, report: Json | HeddleError) -> None:
        with suppress(RuntimeError):  # the event loop is closed: the server has ended
            self._loop.call_soon_threadsafe(self._reports.put_nowait, report)


def _place(made: Path, target: Path) -> None:
    """Give a complete file its place, unless something is there.

    Raises:
        InvalidRequestError: something is there.
    """
    try:
        target.hardlink_to(made)
    except FileExistsError:
        raise _taken(target) from None
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise _taken(target) from None
        made.rename(target)


def _raised(name: str, message: str, param: str | None) -> HeddleError:
    """The error that the process has named."""
    kind: type[HeddleError] = getattr(errors, name)
    if issubclass(kind, FileFormatError):
        return kind(message, field=param or "")
    return kind(message, param=param)
