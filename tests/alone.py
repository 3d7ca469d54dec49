"""Whether the tests run on a copy of the package without extensions; see test_core_alone.py."""

from importlib.util import find_spec

IS_CORE_ALONE = find_spec("heddle.extensions") is None
