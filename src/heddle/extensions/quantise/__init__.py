"""Commands and a route that write models: quantised GGUF files, importance matrices for them."""

from heddle.doors import Extension

EXTENSION = Extension(
    commands={
        "quantize": "heddle.extensions.quantise.commands.quantize:quantize",
        "imatrix": "heddle.extensions.quantise.commands.imatrix:imatrix",
    },
    apis=("heddle.extensions.quantise.api:API",),
)
