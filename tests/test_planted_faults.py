"""The rows of `scripts/faults`, and what `scripts/plant_faults.py` says of a fault."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import plant_faults
from plant_faults import Copy, Fault, read_faults, sees

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from plant_faults import Statuses

FILE, TEST = "src/heddle/rooms.py", "tests/test_rooms.py::test_rooms"
ROW = Fault("rooms", "there is a room less", FILE, "a + b", "a - b", (TEST,))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for file, text in [(FILE, "c = a + b\n"), ("tests/test_rooms.py", "def test_rooms(): ...\n")]:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def test_no_row_is_stale_and_each_says_another_thing() -> None:
    faults = read_faults()
    stale = {one.says: problem for one in faults if (problem := one.problem())}
    assert stale == {}
    assert len({one.says for one in faults}) == len(faults)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"file": "src/heddle/attic.py"}, "src/heddle/attic.py is not a file"),
        ({"file": "tests/test_rooms.py"}, "tests/test_rooms.py is not a file"),
        ({"old": "a * b"}, "occurs 0 times"),
        ({"old": " "}, "occurs 4 times"),
        ({"new": "a +"}, "is no Python"),
        ({"new": "a  +  b"}, "is the same code"),
        ({"tests": ()}, "there is no test"),
        ({"tests": (TEST, "tests/test_rooms.py::test_room")}, "no test tests/test_rooms.py::test_"),
        ({"tests": ("tests/test_attics.py::test_rooms",)}, "there is no test tests/test_attics.py"),
    ],
)
def test_why_a_row_is_stale(root: Path, change: dict, problem: str) -> None:
    assert problem in (replace(ROW, **change).problem(root) or "")


def test_a_row_may_name_one_parameter_of_a_test(root: Path) -> None:
    assert replace(ROW, tests=(f"{TEST}[1-2]",)).problem(root) is None


def test_keys_that_no_fault_has_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rooms.toml").write_text('[[fault]]\nsays = "there is a room less"\n')
    with pytest.raises(ValueError, match="must have says, file, old, new and tests"):
        read_faults(tmp_path)


class Planted(Copy):
    """A copy in which a run of tests ends in a given way."""

    def __init__(self, ends: Statuses | str) -> None:
        self.ends = ends

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        yield

    def run(self, tests: Iterable[str], timeout: float) -> Statuses | str:
        return self.ends


OTHER = "tests/test_rooms.py::test_doors"


@pytest.mark.parametrize(
    ("sound", "planted", "verdict"),
    [
        ({"passed"}, {TEST: {"failed"}, OTHER: {"failed", "passed"}}, ("seen", "")),
        ({"passed"}, {TEST: {"failed"}, OTHER: {"passed"}}, ("NOT SEEN", f"passes: {OTHER}")),
        ({"passed"}, {TEST: {"failed"}}, ("NOT SEEN", f"passes: {OTHER}")),
        ({"passed"}, "pytest exits with 2", ("undecided", "pytest exits with 2")),
        (
            {"failed", "passed"},
            {},
            ("undecided", f"without the fault, {TEST} is failed and passed"),
        ),
        ({"skipped"}, {}, ("skipped", f"without the fault, {TEST} is skipped")),
        (set(), {}, ("undecided", f"without the fault, {TEST} is not run")),
    ],
)
def test_a_fault_is_seen_if_each_of_its_tests_fails(
    monkeypatch: pytest.MonkeyPatch,
    sound: set[str],
    planted: Statuses | str,
    verdict: tuple[str, str],
) -> None:
    monkeypatch.setattr(Fault, "problem", lambda self: None)
    fault = replace(ROW, tests=(TEST, OTHER))
    without = {TEST: sound, OTHER: {"passed"}}
    assert sees(fault, Planted(planted), without, 1.0) == verdict


def test_a_copy_has_the_fault_until_its_tests_have_run(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / FILE).with_name("__init__.py").touch()
    monkeypatch.setattr(plant_faults, "ROOT", root)
    copy = Copy(folder := tmp_path_factory.mktemp("copy"))
    with copy.planted(ROW):
        assert (folder / FILE).read_text() == "c = a - b\n"
        assert (root / FILE).read_text() == "c = a + b\n"
    assert (folder / FILE).read_text() == "c = a + b\n"


def test_a_run_says_how_each_test_ended(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / FILE).with_name("__init__.py").touch()
    (root / "tests" / "test_rooms.py").write_text(
        "import heddle, pytest\n"
        "@pytest.mark.parametrize('room', [1, 2])\n"
        "def test_rooms(room): assert room == 1\n"
        "def test_skipped(): pytest.skip()\n"
        "def test_copied(): assert 'copy' in heddle.__file__\n"
    )
    (root / "tests" / "test_broken.py").write_text("import nothing_of_this_name\n")
    (root / "tests" / "conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('gate')\n"
    )
    monkeypatch.setattr(plant_faults, "ROOT", root)
    copy = Copy(tmp_path_factory.mktemp("copy"))
    assert copy.run(["tests/test_rooms.py"], 60.0) == {
        TEST: {"passed", "failed"},
        "tests/test_rooms.py::test_skipped": {"skipped"},
        "tests/test_rooms.py::test_copied": {"passed"},
    }
    broken = copy.run(["tests/test_broken.py::test_rooms"], 60.0)
    assert isinstance(broken, str)
    assert "pytest exits with" in broken
