"""Fixtures for tests of several rooms."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from alone import IS_CORE_ALONE
from patience import PATIENCE

TESTS = Path(__file__).parent


# However slow the machine is, that is no fault of what is tested.
settings.register_profile("heddle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# What decides on a change tries the same examples each time, and fails for the change or never.
settings.register_profile(
    "gate", settings.get_profile("heddle"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("heddle")


QUICK = (
    *("cache", "disk", "engine", "hosting", "loading", "models", "sampling", "scheduler"),
    *("server/generate", "text", "weights"),
)
"""Rooms of the core whose tests compute little."""
CORE = ("cli", "executors", "server")
"""Other rooms, of which a copy of the core alone runs the first cases."""
ROOMS = QUICK + CORE if IS_CORE_ALONE else QUICK


def _is_quick(item: pytest.Item) -> bool:
    """Whether a test is of such a room, needs no model, and tries no random examples."""
    room = item.path.relative_to(TESTS).as_posix()
    return (
        room.startswith(tuple(f"{one}/" for one in ROOMS))
        and not any(map(item.get_closest_marker, ("model", "large", "slow", "torch", "node")))
        and not getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the first case of each quick test function `quick`, if one can be of the core alone."""
    quick = [item for item in items if _is_quick(item)]
    quick.sort(key=lambda item: item.get_closest_marker("extensions") is not None)
    first = {item.nodeid.partition("[")[0]: item for item in reversed(quick)}
    for item in first.values():
        item.add_marker(pytest.mark.quick)


@cache
def _needs_torch(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return 'importorskip("torch")' in text or "from triton_device import" in text


PATHS_OF_EXTENSIONS = (
    *("/api/", "/apply", "/completion", "/embedding", "/infill", "/messages", "/metrics"),
    *(
        "/prefix_cache",
        "/props",
        "/slots",
        "/tokenize",
        "/v1/completion",
        "/v1/messages",
        "/v1/prefix_cache",
    ),
)
PATHS_OF_CORE = ("/completions", "/embeddings", "/v1/completions")
"""Those that begin like a path of an extension."""


FIELDS_OF_EXTENSIONS = ("grammar", "guided_", "structured_outputs")
"""How their names begin."""
COMMANDS_OF_EXTENSIONS = {"bench", "doctor", "engram", "imatrix", "quantize", "suggest", "top"}


def _is_of_extension(parameter: object) -> bool:
    """Whether it is a path or a command line of an extension, or a request with such a part."""
    if isinstance(parameter, str):
        is_of_core = parameter in PATHS_OF_CORE
        return parameter.startswith(PATHS_OF_EXTENSIONS) and not is_of_core
    if isinstance(parameter, list):
        return parameter[:1] != [] and parameter[0] in tuple(COMMANDS_OF_EXTENSIONS)
    return isinstance(parameter, dict) and (
        any(str(name).startswith(FIELDS_OF_EXTENSIONS) for name in parameter)
        or _is_of_extension(parameter.get("path"))
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test `torch` or `extensions` if its file or one of its parameters needs them."""
    call = getattr(item, "callspec", None)
    parameters = list(call.params.values()) if call else []
    devices = (one for one in parameters if isinstance(one, str))
    if _needs_torch(item.path) or any(one.split(",")[0] == "torch" for one in devices):
        item.add_marker(pytest.mark.torch)
    if any(map(_is_of_extension, parameters)):
        item.add_marker(pytest.mark.extensions)


@cache
def _needs_extension(path: Path) -> bool:
    """Whether a file of tests imports an extension, itself or through other files of tests."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        if any(name.startswith("heddle.extensions") for name in names):
            return True
        if any(_needs_extension(file) for name in names for file in _files(path, name)):
            return True
    return False


def _files(importer: Path, name: str) -> list[Path]:
    """The file of tests that a module's name means to `importer`; none if it is no such file."""
    folders = [importer.parent, TESTS, TESTS / "executors", TESTS / "models"]
    files = [folder / f"{name.replace('.', '/')}.py" for folder in folders]
    return [file for file in files if file.is_file() and file != importer][:1]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what compares the core with an extension, where there is none."""
    if not IS_CORE_ALONE:
        return None
    if collection_path == TESTS / "extensions":
        return True
    return (collection_path.suffix == ".py" and _needs_extension(collection_path)) or None


@pytest.fixture(scope="session", autouse=True)
def _masks_take_their_time() -> None:
    """Where machines share a processor, a thread's time contains the time of others."""
    from heddle.text.constrained import matching

    matching.MASK_SECONDS = PATIENCE


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file, fetched once into the cache folder."""
    from heddle.config import DEFAULT_MODEL
    from heddle.folders import cache_home
    from heddle.weights.sources import find

    return find(DEFAULT_MODEL, cache_home()).path
