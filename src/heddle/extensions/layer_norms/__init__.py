"""Families with layer norms in place of RMS norms."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.layer_norms.cohere:FAMILY",
        "heddle.extensions.layer_norms.phi:FAMILY",
        "heddle.extensions.layer_norms.stablelm:FAMILY",
        "heddle.extensions.layer_norms.starcoder2:FAMILY",
    )
)
