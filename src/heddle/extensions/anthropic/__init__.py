"""Anthropic's API: messages and their token counts."""

from heddle.doors import Extension

EXTENSION = Extension(
    apis=("heddle.extensions.anthropic.api:API",),
    fields={"Anthropic": "heddle.extensions.anthropic.field_rows:ROWS"},
)
