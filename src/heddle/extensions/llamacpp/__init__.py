"""llama.cpp's API: completion, infill, embeddings, chat templates, properties and metrics."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.llamacpp.settings:LlamaCppSettings",),
    apis=("heddle.extensions.llamacpp.api:API",),
    fields={"llama.cpp": "heddle.extensions.llamacpp.field_rows:ROWS"},
    collectors=("heddle.extensions.llamacpp.metrics:collector",),
)
