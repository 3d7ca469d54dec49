"""Gemma 3n: four streams of hidden states, and inputs of the layers' own."""

from heddle.doors import Extension

EXTENSION = Extension(families=("heddle.extensions.gemma3n.gemma3n:FAMILY",))
