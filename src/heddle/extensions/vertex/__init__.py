"""Vertex AI's `/predict`: several bodies of `/v1/chat/completions` in one."""

from heddle.doors import Extension

EXTENSION = Extension(apis=("heddle.extensions.vertex.api:API",))
