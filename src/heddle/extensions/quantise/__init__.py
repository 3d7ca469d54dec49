"""Commands that write models: quantised GGUF files, and importance matrices for them."""

from heddle.doors import Extension

EXTENSION = Extension(
    commands={
        "quantize": "heddle.extensions.quantise.commands.quantize:quantize",
        "imatrix": "heddle.extensions.quantise.commands.imatrix:imatrix",
    }
)
