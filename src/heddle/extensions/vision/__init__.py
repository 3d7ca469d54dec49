"""Pictures in prompts: the eyes of models that see them."""

from heddle.doors import Extension

EXTENSION = Extension()
