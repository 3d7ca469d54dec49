"""Encoders: BERT and its kin, which make embeddings, scores of pairs and classes of texts; BART."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=(
        "heddle.extensions.encoders.bart:FAMILY",
        "heddle.extensions.encoders.bert:FAMILY",
        "heddle.extensions.encoders.modernbert:FAMILY",
        "heddle.extensions.encoders.mpnet:FAMILY",
        "heddle.extensions.encoders.rotary:FAMILY",
    )
)
