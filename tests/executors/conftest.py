"""Fixtures that the tests of executors share."""

from fixtures.masks import masks_in_time  # noqa: F401
