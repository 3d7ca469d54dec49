"""Checks the import directions of the rooms (docs/design.md), and that no imports form a circle.

    python scripts/check_imports.py

Prints each import in a wrong direction and each circle. Exits with 1 if there are any. Every
`import` statement counts, also inside functions. Imports under `if TYPE_CHECKING:` count too: a
type is a dependency.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGE = Path(__file__).parent.parent / "src" / "heddle"

OPEN = {
    *{
        "embedding",
        "cgroups",
        "checks",
        "closing",
        "config",
        "cores",
        "doors",
        "errors",
        "extended",
        "parameters",
    },
    *{
        "executor",
        "folders",
        "grammars",
        "outputs",
        "sampling_params",
        "hub_place",
        "pictures",
        "process_memory",
        "roofline",
        "sent_pictures",
        "settings",
        "sizes",
        "state",
        "step",
        "thread_priority",
        "token_rules",
    },
}
"""Files that every room may import."""

MAY_IMPORT = {
    "extensions": {"cli", "server", "hosting"},  # and all of the core; see EXTENSIONS_MAY_IMPORT
    "cli": {"server", "hosting", "engine", "loading", "weights", "text", "_native"},
    "server": {"hosting", "engine", "loading", "text"},
    "hosting": {"engine", "loading", "weights"},
    "engine": {
        *{"loading", "scheduler", "drafting", "executors", "cache", "disk", "text", "weights"},
    },
    "loading": {"executors", "models", "text", "weights"},
    "scheduler": {"cache"},
    "drafting": {"_native"},
    "executors": {"models", "weights", "_native"},
    "cache": {"disk"},
    "disk": set(),
    "models": {"weights"},
    "text": {"weights"},
    "weights": set(),
    # Single files beside the rooms:
    "__init__": {"hosting", "engine"},
    "__main__": {"cli"},
    "checks": {"errors"},
    "closing": set(),
    "config": {"defaults", "errors", "folders", "settings"},
    "cgroups": set(),
    "cores": {"cgroups", "sizes"},
    "doors": {"errors"},
    "defaults": {"errors", "parameters", "sampling_params"},
    "embedding": {"checks", "sampling_params"},
    "errors": set(),
    "extended": {"errors"},
    "executor": {"roofline", "state", "step"},
    "folders": {"errors"},
    "grammars": {"errors"},
    "hub_place": {"config", "folders"},
    "outputs": {"errors"},
    "parameters": {"checks"},
    "pictures": {"state", "step"},
    "process_memory": {"cgroups"},
    "roofline": set(),
    "sampling_params": {"checks", "errors", "grammars", "parameters"},
    "sent_pictures": {"config", "doors", "errors", "pictures"},
    "settings": {"defaults", "errors", "parameters", "sizes"},
    "sizes": {"errors"},
    "state": set(),
    "step": {"sampling_params", "outputs", "embedding"},
    "thread_priority": set(),
    "token_rules": {"_native"},
    "_native": set(),
}

EXTENSIONS_MAY_IMPORT = {
    "llamacpp": {"admin", "metrics"},
    "lora": {"llamacpp", "quantise"},
    "processes": {"engrams"},
    "reference": {"engrams"},
    "quantise": {"reference"},
    "ray": {"processes", "torch"},
    "torch": {"engrams", "processes", "quantise"},
    "apertus": {"decoders"},
    "deepseek": {"decoders"},
    "gemma3n": {"gemma4"},
    "gpt_oss": {"decoders"},
    "hybrids": {"decoders", "deepseek"},
    "layer_norms": {"decoders"},
    "olmo": {"decoders"},
    "rwkv": {"layer_norms"},
    "suggest": {"bench"},
}
"""The other extensions that an extension needs. Every extension may import all of the core."""

ADDRESSES = {"deploy.py": "ray"}
"""Files beside the rooms by which users name a part of an extension. They belong to it."""

SERVER_MAY_IMPORT = {
    "http": set(),
    "generate": {"http"},
    "api": {"generate", "http"},
    "app": {"api", "generate", "http"},
    "__init__": set(),
}
"""Directions inside server/. Packages of api/ do not import one another."""

WITHOUT_ARRAYS = {"scheduler", "cache", "disk"}
"""Rooms without arrays: no numpy, no native module, no torch."""


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".pyi").removesuffix(".py")


def imported_modules(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, dotted module) of every import. `from heddle import x` counts as heddle.x."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                found.append((node.lineno, "." * node.level))
            elif node.module == "heddle":
                found += [(node.lineno, f"heddle.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, node.module or ""))
    return found


def server_problem(path: Path, module: str) -> str | None:
    """Why one module of server/ may not import another; None if it may."""
    here, there = path.relative_to(PACKAGE).with_suffix("").parts[1:], module.split(".")[2:]
    if not there or (there[0] != here[0] and there[0] not in SERVER_MAY_IMPORT[here[0]]):
        return f"server/{here[0]} may not import {module}"
    if here[0] == there[0] == "api" and here[1:2] != tuple(there[1:2]):
        return f"APIs do not import one another; {module} belongs to another API"
    return None


def extension_problem(path: Path, module: str) -> str | None:
    """Why a module may not import one of an extension, or name it in a text; None if it may."""
    here, there = path.relative_to(PACKAGE).parts, module.split(".")[2:]
    if here[0] != "extensions" and here[0] not in ADDRESSES:
        return f"the core imports no extension, and {module} is one"
    own = ADDRESSES.get(here[0]) or (here[1] if len(here) > 2 else "")
    if there and there[0] not in {own, *EXTENSIONS_MAY_IMPORT.get(own, set())}:
        return f"the extension {own} may not import {module}"
    return None


def named_modules(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, dotted module) of every text that begins like a module of an extension."""
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [
        (node.lineno, node.value.partition(":")[0])
        for node in texts
        if isinstance(node.value, str) and node.value.startswith("heddle.extensions.")
    ]


def problem_of(path: Path, module: str) -> str | None:
    """Why a module may not import another one; None if it may."""
    room, parts = room_of(path), module.split(".")
    if module.startswith("."):
        return "imports must be absolute"
    if parts[0] != "heddle":
        if room in WITHOUT_ARRAYS and parts[0] in {"numpy", "torch"}:
            return f"{room} works without arrays and may not import {parts[0]}"
        return None
    target = parts[1] if len(parts) > 1 else "__init__"
    if target == "extensions":
        return extension_problem(path, module)
    if room == "extensions" or target == "__version__":
        return None
    if target not in MAY_IMPORT[room] | OPEN | {room}:
        return f"{room} may not import {target}"
    return server_problem(path, module) if room == target == "server" else None


def complaints(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    found = [
        (line, problem)
        for line, module in [*imported_modules(tree), *named_modules(tree)]
        if (problem := problem_of(path, module)) is not None
    ]
    return [f"{path.relative_to(PACKAGE.parent.parent)}:{line}: {text}" for line, text in found]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def dependencies(files: Sequence[Path]) -> dict[str, set[str]]:
    """The modules among `files` that each module imports.

    `from package import name` depends on the module `package.name` if it exists, else on the
    package itself.
    """
    modules = {module_of(path): path for path in files}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {full if full in modules else node.module for full in names}
        graph[name] = (found & modules.keys()) - {name}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import one another, directly or indirectly."""
    reachable = {name: reached_from(name, graph) for name in graph}
    found = {
        frozenset(other for other in reachable[name] if name in reachable[other])
        for name in graph
        if name in reachable[name]
    }
    return sorted(sorted(circle) for circle in found)


def reached_from(name: str, graph: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    ahead = [*graph[name]]
    while ahead:
        if (module := ahead.pop()) not in reached:
            reached.add(module)
            ahead += graph[module]
    return reached


def main() -> int:
    files = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")])
    found = [line for path in files for line in complaints(path)]
    found += [f"circle of imports: {', '.join(names)}" for names in circles(dependencies(files))]
    print("\n".join(found) or f"import directions hold in {len(files)} files, without circles")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
