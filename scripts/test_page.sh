#!/usr/bin/env bash
# Runs the tests of the web page in a browser.
#
#   scripts/test_page.sh
#
# The current environment must have Heddle and its test extra, and the machine Chromium (on Debian:
# apt-get install chromium). If Playwright for Python is missing, the script installs it without a browser.
# The group takes one to two minutes on two cores.
#
# Exits with 77 if Playwright or Chromium cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

not_run() {
    echo "The tests in a browser were not run: $1"
    exit 77
}

command -v chromium >/dev/null || not_run "chromium is not installed"
# axe-core, which checks rules of accessibility, comes with axe-playwright-python.
python -c 'import playwright, axe_playwright_python' 2>/dev/null ||
    python -m pip install --quiet 'playwright>=1.50,<2' 'axe-playwright-python>=0.1.4,<0.2' ||
    not_run "pip cannot install playwright"
python -c 'import playwright.sync_api' || not_run "playwright cannot be imported"

# One process: a browser takes both cores.
python -m pytest -q -n 0 --durations=10 tests/extensions/page/browser
