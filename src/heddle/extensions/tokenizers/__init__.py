"""Tokenizers beside BPE in tokenizer.json: WordPiece, Unigram, and vocabularies of ranked bytes."""

from heddle.doors import Extension

EXTENSION = Extension(
    tokenizers={
        "WordPiece": "heddle.extensions.tokenizers.wordpiece:KIND",
        "bert": "heddle.extensions.tokenizers.wordpiece:GGUF_KIND",
        "Unigram": "heddle.extensions.tokenizers.unigram:KIND",
        "t5": "heddle.extensions.tokenizers.unigram:GGUF_KIND",
    },
    tokenizer_files={
        "tekken.json": "heddle.extensions.tokenizers.ranks:read_tekken",
        "tiktoken.model": "heddle.extensions.tokenizers.ranks:read_tiktoken",
    },
)
