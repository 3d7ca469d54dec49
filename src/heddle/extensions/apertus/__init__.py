"""Apertus: feed-forward layers with a learnt activation."""

from heddle.doors import Extension

EXTENSION = Extension(families=("heddle.extensions.apertus.apertus:FAMILY",))
