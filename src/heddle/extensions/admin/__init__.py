"""Heddle's own routes for operators: load and unload models, slots, the prefix cache."""

from heddle.doors import Extension

EXTENSION = Extension(apis=("heddle.extensions.admin.api:API",))
