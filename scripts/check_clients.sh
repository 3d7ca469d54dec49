#!/usr/bin/env bash
# Runs the conformance tests with clients that are not in the test extra.
#
#     scripts/check_clients.sh [REQUIREMENT...]      default: the major versions before the newest
#     scripts/check_clients.sh programs              programs and libraries that use a server
#
# The current environment must have Heddle and its test extra. For a requirement, the script runs the
# tests of the official client, with the requirement's packages before those of the environment. For
# programs, it makes an environment of their own, with the newest versions and Node. This takes 500 MB
# and some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ "$*" = programs ]; then
    HEDDLE=$(command -v heddle)
    export HEDDLE LITELLM_LOCAL_MODEL_COST_MAP=True # LiteLLM fetches its list of prices otherwise
    python -m venv "$folder/environment"
    PATH="$folder/environment/bin:$PATH"
    python -m pip install --quiet --upgrade 'pip>=25.1' # the first one that knows --group
    python -m pip install --quiet --group programs
    python -m pytest -q --confcutdir tests/conformance/programs tests/conformance/programs
    exit
fi

[ $# -gt 0 ] || set -- 'openai<3' 'anthropic<2'
for requirement in "$@"; do
    packages="$folder/$requirement"
    python -m pip install --quiet --target "$packages" "$requirement"
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
