"""Checks that each name that `heddle` exports says its types: pip install -e '.[release]'.

    python scripts/type_coverage.py

mypy checks Heddle's own code; a user's type checker reads what the code says, and infers the rest
in its own way. So the script asks pyright (`basedpyright --verifytypes`) for the members of the
classes and functions in `heddle.__all__`, and fails if one has no annotation. It also prints the
share of symbols of all modules whose types are known.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import heddle

LEAST_SCORE = 0.89
"""The least share of symbols of all modules. Attributes without an annotation are the rest."""


def public_names() -> list[str]:
    """The names in `heddle.__all__`, as the modules have them that define them."""
    values = ((name, getattr(heddle, name)) for name in heddle.__all__)
    return [f"{value.__module__}.{getattr(value, '__qualname__', name)}" for name, value in values]


def report() -> dict[str, Any]:
    """What pyright says of the package."""
    command = ["basedpyright", "--verifytypes", "heddle", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    return found


def faults(symbols: list[dict[str, Any]], names: list[str]) -> list[str]:
    """The public symbols without an annotation or with an unknown type.

    A type that is unknown because of another symbol is named there.
    """
    found = []
    for symbol in symbols:
        name = symbol["name"]
        if any(name == one or name.startswith(f"{one}.") for one in names):
            said = [one["message"].splitlines()[0] for one in symbol["diagnostics"]]
            wrong = [one for one in said if "missing" in one or "unknown for" in one]
            found += [f"{name}: {one}" for one in wrong]
    return found


def main() -> int:
    if shutil.which("basedpyright") is None:
        print("The types were not checked: pip install basedpyright")
        return 77
    found = report()
    wrong = faults(found["symbols"], public_names())
    print(*wrong, sep="\n", end="\n" if wrong else "")
    score = found["completenessScore"]
    print(f"{len(wrong)} public names lack types; {score:.1%} of all symbols are known")
    return 1 if wrong or score < LEAST_SCORE else 0


if __name__ == "__main__":
    sys.exit(main())
