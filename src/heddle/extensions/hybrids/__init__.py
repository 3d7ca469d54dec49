"""Families in which layers keep a recurrent state: delta nets, Mamba, short convolutions."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.hybrids.falcon_h1:FAMILY",
        "heddle.extensions.hybrids.granite_hybrid:FAMILY",
        "heddle.extensions.hybrids.jamba:FAMILY",
        "heddle.extensions.hybrids.kimi_linear:FAMILY",
        "heddle.extensions.hybrids.lfm2:FAMILY",
        "heddle.extensions.hybrids.mamba:FAMILY",
        "heddle.extensions.hybrids.mamba2:FAMILY",
        "heddle.extensions.hybrids.nemotron_h:FAMILY",
        "heddle.extensions.hybrids.qwen3_next:FAMILY",
    )
)
