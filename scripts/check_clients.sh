#!/usr/bin/env bash
# Runs the conformance tests with other versions of the official clients than the installed ones.
#
#     scripts/check_clients.sh [REQUIREMENT...]      default: the major versions before the newest
#
# The current environment must have Heddle and its test extra. The script installs each requirement
# into its own folder. In the test run, this folder comes before the environment's packages.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
[ $# -gt 0 ] || set -- 'openai<3' 'anthropic<2'

for requirement in "$@"; do
    packages="$folder/$requirement"
    python -m pip install --quiet --disable-pip-version-check --target "$packages" "$requirement"
    client=${requirement%%[<>=!~]*}
    PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}" python - "$client" <<'PYTHON'
import sys
from importlib.metadata import version

import pytest

client = sys.argv[1]
print(f"{client} {version(client)}", flush=True)
sys.exit(pytest.main(["-q", f"tests/conformance/test_{client}_client.py"]))
PYTHON
done
