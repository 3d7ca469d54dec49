"""InternLM 2, 2.5 and 3: as Llama. In folders of InternLM 2, heads lie in groups.

Cai et al. 2024 (arXiv:2403.17297); llama.cpp, `conversion/internlm.py`; `transformers`,
`internlm3`. GGUF files of InternLM 3 are called llama.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.decoders.joined import made_of, of_groups
from heddle.models.families import llama
from heddle.models.family import Family
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import MadeTensor, Stored


def _make(tensors: Mapping[str, Stored], config: Config) -> dict[str, MadeTensor]:
    heads = config.get("num_attention_heads")
    groups = config.get("num_key_value_heads", heads)
    if not isinstance(heads, int) or not isinstance(groups, int) or heads < 1 or groups < 1:
        return {}  # the size is refused by name when the model is built
    return made_of(tensors, "layers.", {"attention.wqkv": of_groups(heads, groups)})


FAMILY = Family(
    build=llama.build,
    gguf={"internlm2": GGUFNames(values=INTERLEAVED)},
    hf={
        "internlm2": FolderNames(
            outside={"embedding": "model.tok_embeddings", "output": "output"},
            layer={
                "attention_norm": "attention_norm",
                "attention.output": "attention.wo",
                "mlp_norm": "ffn_norm",
                "mlp.gate": "feed_forward.w1",
                "mlp.up": "feed_forward.w3",
                "mlp.down": "feed_forward.w2",
            },
            make=_make,
        ),
        "internlm3": FolderNames(),
    },
)
