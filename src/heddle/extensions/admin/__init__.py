"""Heddle's own routes for operators: load and unload models, slots, the prefix cache."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.admin.settings:AdminSettings",),
    apis=("heddle.extensions.admin.api:API",),
)
