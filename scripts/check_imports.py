"""Holds the rooms' import directions (docs/design.md), for `import` statements wherever they stand.

    python scripts/check_imports.py

Prints each import that points the wrong way and exits with 1 if there is one. Imports under
`if TYPE_CHECKING:` count too: a type is a dependency.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "heddle"

OPEN = {"types", "embedding", "checks", "config", "errors", "ranges", "step", "roofline"}
"""What every room may import, beside itself."""

MAY_IMPORT = {
    "cli": {"bench", "server", "engine", "weights", "text"},
    "bench": {"engine"},
    "server": {"engine", "text"},
    "engine": {"scheduler", "executors", "cache", "disk", "text", "weights", "models"},
    "scheduler": {"cache"},
    "executors": {"cache", "models", "weights", "_native"},
    "cache": {"disk"},
    "disk": set(),
    "models": {"weights"},
    "testing": {"models", "weights"},
    "text": {"weights"},
    "weights": set(),
    # Single files beside the rooms:
    "__init__": {"engine"},
    "__main__": {"cli"},
    "checks": {"errors"},
    "config": {"errors"},
    "embedding": {"checks", "types"},
    "errors": set(),
    "ranges": set(),
    "roofline": set(),
    "step": {"types", "embedding"},
    "types": {"checks", "errors", "ranges"},
    "_native": set(),
}

WITHOUT_ARRAYS = {"scheduler", "cache", "disk"}
"""Rooms without arrays: no numpy, no native module, no torch."""


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".pyi").removesuffix(".py")


def imported_modules(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, dotted module) of every import; `from heddle import x` counts as heddle.x."""
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


def complaints(path: Path) -> list[str]:
    room = room_of(path)
    allowed = MAY_IMPORT[room] | OPEN | {room}
    result = []
    for line, module in imported_modules(ast.parse(path.read_text())):
        parts = module.split(".")
        if module.startswith("."):
            problem = "imports must be absolute"
        elif parts[0] == "heddle":
            target = parts[1] if len(parts) > 1 else "__init__"
            if target in allowed or target == "__version__":
                continue
            problem = f"{room} may not import {target}"
        elif room in WITHOUT_ARRAYS and parts[0] in {"numpy", "torch"}:
            problem = f"{room} has no arrays, and no {parts[0]}"
        else:
            continue
        result.append(f"{path.relative_to(PACKAGE.parent.parent)}:{line}: {problem}")
    return result


def main() -> int:
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
    found = [line for path in sorted(files) for line in complaints(path)]
    print("\n".join(found) or f"import directions hold in {len(files)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
