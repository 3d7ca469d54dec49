"""Which changes of the program invalidate pages on disk, and which do not."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from heddle.doors import Extension
from heddle.executors import arithmetic
from heddle.executors.arithmetic import door_sources, source_digest
from heddle.executors.cpu import executor as cpu
from heddle.extensions.reference import executor as reference
from heddle.extensions.torch import sources as torch

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(arithmetic.__file__).parent.parent
COMPUTING_ROOMS = {"models", "weights", "executors", "extensions"}
NO_ARITHMETIC = {
    "executors/adapting.py",  # refusals
    "executors/arithmetic.py",  # digests
    "executors/failures.py",  # errors
    "executors/plan_problems.py",  # refusals
    "executors/scenes.py",  # the order of scenes, of which each has its own bits
    "executors/edit_state.py",  # the choice of tokens
    "extensions/torch/staging.py",  # copies
    "extensions/reference/sampler.py",  # the choice of tokens
    "weights/low_rank.py",  # values without methods that compute
}
OF_FAMILIES = ("models/families/llama.py",)
SOURCES = {"cpu": cpu.SOURCES, "reference": reference.SOURCES, "torch": torch.SOURCES}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    python_only = lambda folder, names: [  # noqa: E731
        name for name in names if not (Path(folder, name).is_dir() or name.endswith(".py"))
    ]
    return Path(shutil.copytree(PACKAGE, tmp_path / "heddle", ignore=python_only))


@pytest.mark.parametrize("device", SOURCES)
def test_the_digest_ignores_edits_that_change_no_arithmetic(package: Path, device: str) -> None:
    def digest() -> str:
        return source_digest(*SOURCES[device], package=package)

    before = source_digest(*SOURCES[device])
    assert digest() == before, "it does not depend on where the package is"
    for name in ("server/app.py", "scheduler/scheduler.py", "executors/cpu/samplers.py", "step.py"):
        edit(package / name)
        assert digest() == before
    for name in (
        "models/blocks.py",
        "executors/graph/recording.py",
        "weights/gguf/names.py",
        *OF_FAMILIES,
    ):
        edit(package / name)
        after = digest()
        assert after != before
        before = after


@pytest.mark.parametrize("door", ["families", "quantisations"])
def test_the_digest_covers_packages_that_build_models_or_read_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    """A package whose door is in one module and whose arithmetic is in another, and one module."""
    inner = tmp_path / f"package_{door}" / "inner.py"
    inner.parent.mkdir()
    alone = tmp_path / f"module_{door}.py"
    for path in (inner.parent / "__init__.py", inner.parent / "door.py", inner, alone):
        path.write_text("")
    references = (f"package_{door}.door:build", f"module_{door}:build")
    brought: Any = references if door == "families" else dict(enumerate(references))
    named = {"some": Extension(**{door: brought})}
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = [source_digest()]
    monkeypatch.setattr(arithmetic, "extensions", lambda: named)
    for path in (inner, alone):
        digests.append(source_digest())
        edit(path)
    assert len({*digests, source_digest()}) == 4


def edit(path: Path) -> None:
    path.write_text(path.read_text() + "\n")


@pytest.mark.parametrize("device", SOURCES)
def test_the_digest_covers_what_its_modules_import(device: str) -> None:
    """If the digest missed a module that computes, wrong pages would stay in use."""
    covered = {path for pattern in SOURCES[device] for path in PACKAGE.glob(pattern)}
    assert all(list(PACKAGE.glob(pattern)) for pattern in SOURCES[device])
    covered |= door_sources()
    missing = {
        imported.relative_to(PACKAGE).as_posix()
        for path in covered
        for imported in computing_imports(path)
        if imported not in covered
    }
    assert missing <= NO_ARITHMETIC


def computing_imports(path: Path) -> Iterator[Path]:
    """Files of the computing rooms that a module imports when it runs."""
    for node in ast.walk(without_types(ast.parse(path.read_text()))):
        if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("heddle.")):
            continue
        parts = str(node.module).split(".")[1:]
        if parts[0] not in COMPUTING_ROOMS:
            continue
        module = PACKAGE.joinpath(*parts)
        if module.is_dir():
            yield from (module / f"{alias.name}.py" for alias in node.names)
        else:
            yield module.with_suffix(".py")


def without_types(tree: ast.Module) -> ast.Module:
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return tree


def test_the_digest_covers_all_modules_of_extensions_that_bring_families() -> None:
    covered = {path.relative_to(PACKAGE).as_posix() for path in door_sources()}
    assert covered >= {f"extensions/hybrids/{name}.py" for name in ("mamba_mixer", "config/mixers")}
    assert "extensions/deepseek/latent.py" in covered
