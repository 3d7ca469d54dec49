"""Many machines, on Ray Serve."""

from heddle.doors import Extension

EXTENSION = Extension()
