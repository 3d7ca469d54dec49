"""`heddle --version`: version, commit, instruction levels, extras."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path

_SOURCE = Path(__file__).parents[3]
"""The folder of the checkout, if the program runs from one."""
_BUILT = Path(__file__).parents[1] / "commit"
"""A file of packages that were built from a checkout; CMakeLists.txt writes it."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*['\"]([^'\"]+)['\"]")


def described() -> str:
    """The lines of `heddle --version`."""
    try:
        installed = distribution("heddle")
    except PackageNotFoundError:
        return f"heddle (not installed; it runs from its source{_commit(None)})"
    return "\n".join(
        (
            f"heddle {installed.version}{_commit(installed)}",
            f"levels {', '.join(_levels()) or 'none: the native core is not built'}",
            f"extras {', '.join(_extras(installed)) or 'none'}",
        )
    )


def _commit(installed: Distribution | None) -> str:
    """The commit that the program was installed from or runs from; empty if nothing says so."""
    told = installed.read_text("direct_url.json") if installed else None
    cloned = str(json.loads(told or "{}").get("vcs_info", {}).get("commit_id", ""))
    commit = cloned[:12] or _checked_out() or _built_from()
    return f", commit {commit}" if commit else ""


def _built_from() -> str:
    return _BUILT.read_text("ascii").strip() if _BUILT.exists() else ""


def _checked_out() -> str:
    """The commit of the checkout that the program runs from, with -dirty if it has changes."""
    if not (_SOURCE / ".git").exists():
        return ""
    command = ["git", "-C", str(_SOURCE), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _levels() -> list[str]:
    try:
        from heddle import _native
    except ImportError:
        return []
    return _native.isa_levels()


def _extras(installed: Distribution) -> list[str]:
    """The extras all of whose packages are installed."""
    needed: dict[str, list[str]] = {}
    for requirement in installed.requires or ():
        if found := _REQUIREMENT.match(requirement):
            needed.setdefault(found[2], []).append(found[1])
    return [extra for extra, names in needed.items() if all(map(_is_installed, names))]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
