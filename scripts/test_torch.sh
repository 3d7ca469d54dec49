#!/usr/bin/env bash
# Runs the tests of torch devices that CI runs: all but those marked `torch_slow`.
#
#   scripts/test_torch.sh
#
# The current environment must have Heddle and its test extra. If torch or Triton is missing there, the
# script installs torch's CPU build and Triton, which take 2 GB. Triton's kernels run under its interpreter.
#
# Exits with 77 if torch and Triton cannot be installed or imported.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

not_run() {
    echo "The torch tests were not run: $1"
    exit 77
}
have_torch() { python -c 'import torch, triton'; }

# The local version `+cpu` keeps pip from PyPI's build with CUDA. `--no-deps` keeps it from CUDA libraries.
if ! have_torch 2>/dev/null; then
    python -m pip install --quiet --no-deps torch==2.13.0+cpu triton==3.9.0 \
        filelock fsspec jinja2 markupsafe mpmath networkx sympy typing_extensions ||
        not_run "pip cannot install torch 2.13.0+cpu and Triton 3.9.0"
    have_torch || not_run "torch or Triton cannot be imported"
fi

# No other folder has tests that need torch. To collect all folders takes half a minute more.
python -m pytest -q -n 2 --dist loadfile --durations=15 --hypothesis-profile=gate \
    -m "torch and not torch_slow and not large" tests/executors tests/extensions tests/models tests/sampling
