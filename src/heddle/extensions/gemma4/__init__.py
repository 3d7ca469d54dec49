"""Gemma 4: layers that differ in shape, and inputs of their own."""

from heddle.doors import Extension

EXTENSION = Extension(families=("heddle.extensions.gemma4.gemma4:FAMILY",))
