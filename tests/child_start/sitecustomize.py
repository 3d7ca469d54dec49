"""Python imports this first in each process that a test starts with this folder in PYTHONPATH.

HEDDLE_TEST_PREPARES names modules. Each has a function `prepare_child`.
"""

from __future__ import annotations

import importlib
import os
import traceback

try:
    for name in os.environ["HEDDLE_TEST_PREPARES"].split(","):
        importlib.import_module(name).prepare_child()
except BaseException:  # Python would go on
    traceback.print_exc()
    os._exit(1)
