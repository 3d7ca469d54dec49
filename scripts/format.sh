#!/usr/bin/env bash
# Formats Python and C++, and redraws the pictures.
set -euo pipefail
cd "$(dirname "$0")/.."

ruff check --fix --quiet . || true # scripts/lint.sh reports remaining errors
ruff format .
git ls-files '*.cpp' '*.h' | xargs clang-format -i
python scripts/draw_pictures.py
