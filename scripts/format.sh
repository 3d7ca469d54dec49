#!/usr/bin/env bash
# Formats Python and C++, and draws the pictures again.
set -euo pipefail
cd "$(dirname "$0")/.."

ruff check --fix --quiet . || true # scripts/lint.sh tells what is left
ruff format .
git ls-files '*.cpp' '*.h' | xargs clang-format -i
python scripts/draw_pictures.py
