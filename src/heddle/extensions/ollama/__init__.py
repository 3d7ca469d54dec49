"""Ollama's API: chats, prompts, embeddings and models."""

from heddle.doors import Extension

EXTENSION = Extension(
    apis=("heddle.extensions.ollama.api:API",),
    fields={"Ollama": "heddle.extensions.ollama.field_rows:ROWS"},
)
