"""Attention with other heads in each kind of layer, or with gates: MiMo V2, Step 3.5 and others."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.uneven.afmoe:FAMILY",
        "heddle.extensions.uneven.laguna:FAMILY",
        "heddle.extensions.uneven.mimo_v2:FAMILY",
        "heddle.extensions.uneven.step3p5:FAMILY",
    )
)
