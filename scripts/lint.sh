#!/usr/bin/env bash
# Runs all checks that are not tests: style, types, import directions, pictures, tables.
set -euo pipefail
cd "$(dirname "$0")/.."

ruff check .
ruff format --check .
mypy
mypy --config-file tests/mypy.ini
python scripts/check_imports.py
python scripts/draw_pictures.py --check
python scripts/write_tables.py --check
git ls-files '*.cpp' '*.h' | xargs clang-format --dry-run --Werror
