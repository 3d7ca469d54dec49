"""OLMo 2 and 3, OLMoE, and EXAONE 4."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.olmo.exaone4:FAMILY",
        "heddle.extensions.olmo.olmo2:FAMILY",
        "heddle.extensions.olmo.olmoe:FAMILY",
    )
)
