"""Plants faults one at a time, and says which of them the tests see.

    python scripts/plant_faults.py [--jobs N] [--timeout SECONDS] [--least SHARE] [--list] [WORD...]

Each row of `scripts/faults/*.toml` is a fault: a replacement of text in a file of `src/heddle`, and
the tests that fail because of it. WORD chooses rows: the name of a file of faults, or a part of
what a row says, of its file or of its tests. Without WORD, all rows are chosen.

The script first runs all tests of the chosen rows without a fault. Then it plants each fault in a
copy of the package and runs the row's tests; the working tree never changes. A row is

- seen, if each of its tests fails;
- NOT SEEN, if one of its tests passes;
- stale, if the text is not in the file exactly once, or if a test does not exist;
- skipped, if one of its tests is: it needs a browser, for one, and the machine has none;
- undecided, if its tests fail without the fault, run out of time, or if pytest could not collect
  them.

The script exits with 1 unless each chosen row is seen or skipped. `--least 0.97` takes a share of
the rows that are not skipped.

Faults are in Python and in the page's JavaScript: one in native code would need a build of minutes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "scripts" / "faults"
PACKAGE = "src/heddle"

Statuses = dict[str, set[str]]
"""How the tests of a run ended, by node id: `passed`, `failed` or `skipped`.

A parameter's brackets are not part of the id, so a test with parameters has several statuses.
"""


@dataclass(frozen=True)
class Fault:
    """A row: what is wrong, its place, the replacement of text, and the tests that see it."""

    room: str
    says: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def problem(self, root: Path = ROOT) -> str | None:
        """Why the row is stale; None if it is not."""
        path = root / self.file
        if not self.file.startswith(f"{PACKAGE}/") or not path.is_file():
            return f"{self.file} is not a file of {PACKAGE}"
        text = path.read_text("utf-8")
        if (count := text.count(self.old)) != 1:
            return f"`old` occurs {count} times in {self.file}; it must occur once"
        try:
            is_same = _code(path, text) == _code(path, text.replace(self.old, self.new))
        except SyntaxError as error:
            return f"with the fault, {self.file} is no Python: {error}"
        if is_same:
            return "`new` is the same code as `old`"
        missing = [test for test in self.tests if not _test_exists(root, test)]
        return f"there is no test {', '.join(missing)}" if missing or not self.tests else None

    def has(self, word: str) -> bool:
        """Whether a word of the command line chooses this row."""
        texts = (self.says, self.file, *self.tests)
        return word == self.room or any(word in text for text in texts)


def _code(path: Path, text: str) -> str:
    """What two texts of a file have in common if they are the same code."""
    return ast.dump(ast.parse(text)) if path.suffix == ".py" else text


def _test_exists(root: Path, test: str) -> bool:
    file, _, name = test.partition("::")
    path = root / file
    pattern = rf"^ *(async )?def {re.escape(_function(name))}\("
    return path.is_file() and re.search(pattern, path.read_text("utf-8"), re.M) is not None


def _function(name: str) -> str:
    """The function of a test's name, which may begin with a class and end with a parameter."""
    return name.partition("[")[0].rpartition("::")[2]


def read_faults(folder: Path = FAULTS) -> list[Fault]:
    """All rows, in the order of the files' names.

    Raises:
        ValueError: a file has other keys than a fault has.
    """
    faults = []
    for path in sorted(folder.glob("*.toml")):
        content = tomllib.loads(path.read_text("utf-8"))
        if set(content) != {"fault"}:
            raise ValueError(f"{path}: has {sorted(content)}; must have [[fault]] only")
        for row in content["fault"]:
            if set(row) != {"says", "file", "old", "new", "tests"}:
                raise ValueError(f"{path}: {row}; must have says, file, old, new and tests")
            faults.append(Fault(path.stem, **row | {"tests": tuple(row["tests"])}))
    return faults


class Copy:
    """A copy of the package that tests import instead of the working tree's. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        package = folder / PACKAGE
        shutil.copytree(ROOT / PACKAGE, package)
        if (native := importlib.util.find_spec("heddle._native")) and native.origin:
            shutil.copy2(native.origin, package)  # an editable install has it elsewhere
        for finder in sys.meta_path:
            # The import hook of an editable install would win over PYTHONPATH. A .pth file imports
            # the hook's module by name; it finds this module instead.
            hook = finder.__module__ if isinstance(finder, type) else type(finder).__module__
            if "editable" in hook and "heddle" in hook:
                (package.parent / f"{hook}.py").write_text("def entrypoint() -> None: ...\n")
        paths = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            # Other plugins take 5 of the 6 seconds in which pytest starts.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            # A test may wait in vain for what does not come with a fault; see tests/patience.py.
            "TEST_PATIENCE": os.environ.get("TEST_PATIENCE", "30"),
        }
        command = [sys.executable, "-c", "import heddle; print(heddle.__file__)"]
        found = subprocess.check_output(command, env=self._environment, cwd=ROOT, text=True)
        if not Path(found.strip()).is_relative_to(folder):
            raise RuntimeError(f"Python imports {found.strip()}, and not the copy in {folder}")

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Has the fault inside of the `with` block."""
        path = self._folder / fault.file
        text = path.read_text("utf-8")
        self._write(path, text.replace(fault.old, fault.new))
        try:
            yield
        finally:
            self._write(path, text)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text, "utf-8")
        # Python would take it for current if the text has the same length and second.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def run(self, tests: Iterable[str], timeout: float) -> Statuses | str:
        """Run the tests with pytest; returns how they ended, or why this is not known."""
        report = self._folder / "report.xml"
        report.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "_hypothesis_pytestplugin", "-p", "pytest_asyncio.plugin"),
            # The same examples each time.
            "--hypothesis-profile=gate",
            *("-o", "junit_family=xunit1", f"--junitxml={report}", *tests),
        ]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                return f"still runs after {timeout:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what the tests started
        if process.returncode not in {0, 1}:  # as when tests cannot be collected
            lines = output.strip().splitlines() or [""]
            return f"pytest exits with {process.returncode}: {lines[-1]}"
        return _statuses(report)


def _statuses(report: Path) -> Statuses:
    statuses: Statuses = {}
    for case in ElementTree.parse(report).iter("testcase"):
        found = {child.tag for child in case}
        status = "failed" if found & {"failure", "error"} else "passed"
        if "skipped" in found:
            status = "skipped"
        test = f"{case.get('file')}::{(case.get('name') or '').split('[')[0]}"
        statuses.setdefault(test, set()).add(status)
    return statuses


def _status_of(test: str, statuses: Statuses) -> set[str]:
    file, _, name = test.partition("::")
    return statuses.get(f"{file}::{_function(name)}", set())


def sees(fault: Fault, copy: Copy, sound: Statuses, timeout: float) -> tuple[str, str]:
    """The verdict over a fault, and its reason.

    Args:
        fault: the row.
        copy: where to plant it.
        sound: how its tests ended without a fault.
        timeout: seconds that its tests may take.
    """
    if problem := fault.problem():
        return "stale", problem
    for test in fault.tests:
        statuses = _status_of(test, sound)
        if statuses == {"skipped"}:
            return "skipped", f"without the fault, {test} is skipped"
        if "failed" in statuses or "passed" not in statuses:
            ended = " and ".join(sorted(statuses)) or "not run"
            return "undecided", f"without the fault, {test} is {ended}"
    with copy.planted(fault):
        planted = copy.run(fault.tests, timeout)
    if isinstance(planted, str):
        return "undecided", planted
    unseeing = [test for test in fault.tests if "failed" not in _status_of(test, planted)]
    return ("NOT SEEN", f"passes: {', '.join(unseeing)}") if unseeing else ("seen", "")


def plant(faults: list[Fault], jobs: int, timeout: float) -> float:
    """Plant each fault and print what became of it. Returns the share that was seen."""
    began = time.monotonic()
    words: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for _ in range(jobs):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-faults-"))
            copies.put(Copy(Path(folder)))
        tests = sorted({test for one in faults if not one.problem() for test in one.tests})
        copy = copies.get()
        sound = copy.run(tests, timeout * max(len(tests), 1)) if tests else {}
        copies.put(copy)
        if isinstance(sound, str):
            sys.exit(f"without a fault, {sound}")
        print(f"{len(tests)} tests without a fault: {time.monotonic() - began:.0f} s", flush=True)

        def verdict(fault: Fault) -> tuple[str, str, float]:
            copy, start = copies.get(), time.monotonic()
            try:
                return *sees(fault, copy, sound, timeout), time.monotonic() - start
            finally:
                copies.put(copy)

        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, cancel_futures=True)
        for fault, (word, reason, seconds) in zip(faults, pool.map(verdict, faults), strict=True):
            words[word] += 1
            line = f"{word:<9} {seconds:3.0f} s  {fault.room}: {fault.says}"
            print(f"{line}\n    {reason}" if reason else line, flush=True)
    seconds = time.monotonic() - began
    skipped = f", {words['skipped']} skipped" if words["skipped"] else ""
    print(f"{words['seen']} of {len(faults)} faults seen{skipped}, in {seconds / 60:.1f} minutes")
    judged = len(faults) - words["skipped"]
    return words["seen"] / judged if judged else 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults and say which the tests see.")
    parser.add_argument("word", nargs="*", help="chooses rows; all if there is none")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (default: 2)")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds that a row's tests may take"
    )
    parser.add_argument(
        "--least", type=float, default=1.0, help="least share that must be seen (default: all)"
    )
    parser.add_argument("--list", action="store_true", help="only list the rows")
    options = parser.parse_args()
    faults = [
        fault
        for fault in read_faults()
        if not options.word or any(fault.has(word) for word in options.word)
    ]
    if options.list:
        print(*(f"{one.room}: {one.says} ({one.file})" for one in faults), sep="\n")
        return 0
    if not faults:
        sys.exit("no row has one of these words; --list lists all rows")
    share = plant(faults, options.jobs, options.timeout)
    return 1 if share < options.least else 0


if __name__ == "__main__":
    sys.exit(main())
