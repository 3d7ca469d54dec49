"""Families with layer norms in place of RMS norms."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.layer_norms.bloom:FAMILY",
        "heddle.extensions.layer_norms.cohere:FAMILY",
        "heddle.extensions.layer_norms.falcon:FAMILY",
        "heddle.extensions.layer_norms.gpt2:FAMILY",
        "heddle.extensions.layer_norms.gpt_neox:FAMILY",
        "heddle.extensions.layer_norms.nemotron:FAMILY",
        "heddle.extensions.layer_norms.opt:FAMILY",
        "heddle.extensions.layer_norms.phi:FAMILY",
        "heddle.extensions.layer_norms.phimoe:FAMILY",
        "heddle.extensions.layer_norms.stablelm:FAMILY",
        "heddle.extensions.layer_norms.starcoder2:FAMILY",
    )
)
