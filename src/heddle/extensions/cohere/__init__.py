"""Cohere's route for embeddings, `/v2/embed`."""

from heddle.doors import Extension

EXTENSION = Extension(
    apis=("heddle.extensions.cohere.embed:API",),
    fields={"Cohere": "heddle.extensions.cohere.field_rows:ROWS"},
)
