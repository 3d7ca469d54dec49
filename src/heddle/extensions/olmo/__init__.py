"""OLMo 2 and 3, OLMoE, EXAONE 4, Hunyuan and BitNet: norms lie elsewhere than in Llama."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.olmo.bitnet:FAMILY",
        "heddle.extensions.olmo.exaone4:FAMILY",
        "heddle.extensions.olmo.hunyuan:FAMILY",
        "heddle.extensions.olmo.olmo2:FAMILY",
        "heddle.extensions.olmo.olmoe:FAMILY",
    )
)
