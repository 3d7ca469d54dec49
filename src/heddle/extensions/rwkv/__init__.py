"""RWKV-7 and the tokenizer of RWKV World."""

from heddle.doors import Extension

EXTENSION = Extension(
    families=("heddle.extensions.rwkv.rwkv7:FAMILY",),
    tokenizers={
        "rwkv": "heddle.extensions.rwkv.world:GGUF_KIND",
        "RWKV World": "heddle.extensions.rwkv.world:KIND",
    },
    tokenizer_files={
        "rwkv_vocab_v20230424.txt": "heddle.extensions.rwkv.world:read_vocabulary",
    },
)
