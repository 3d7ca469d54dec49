"""Tokenizers of encoders: WordPiece and Unigram."""

from heddle.doors import Extension

EXTENSION = Extension(
    tokenizers={
        "WordPiece": "heddle.extensions.tokenizers.wordpiece:KIND",
        "bert": "heddle.extensions.tokenizers.wordpiece:GGUF_KIND",
        "Unigram": "heddle.extensions.tokenizers.unigram:KIND",
        "t5": "heddle.extensions.tokenizers.unigram:GGUF_KIND",
    }
)
