#!/usr/bin/env bash
# Runs the tests of deployments on a real cluster of Ray, on this machine.
#
#   scripts/test_ray.sh
#
# The current environment must have Heddle and its test extra. If Ray is missing there, the script installs
# it, which takes 400 MB. The group takes 4 to 6 minutes on two cores. One deployment serves most of it, and
# the tests of clients (tests/conformance) run through it, too.
#
# Exits with 77 if Ray cannot be installed or imported.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

not_run() {
    echo "The tests on a cluster of Ray were not run: $1"
    exit 77
}
have_ray() { python -W ignore -c 'from ray import serve'; }

if ! have_ray 2>/dev/null; then
    python -m pip install --quiet 'ray[serve]==2.60.*' || not_run "pip cannot install ray[serve] 2.60"
    have_ray || not_run "Ray cannot be imported"
fi

# One process: a cluster takes both cores.
python -m pytest -q -n 0 --durations=15 --hypothesis-profile=gate tests/extensions/ray
