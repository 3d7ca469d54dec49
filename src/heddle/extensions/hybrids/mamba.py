"""Mamba alone, and FalconMamba, which norms what the scan reads.

Gu & Dao 2023 (arXiv:2312.00752), TII 2024 (arXiv:2410.05355); `transformers`, `models/mamba` and
`models/falcon_mamba`; llama.cpp, `mamba-base.cpp` and `conversion/mamba.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.extensions.hybrids import names
from heddle.extensions.hybrids.config import mamba as config
from heddle.extensions.hybrids.layers import recurrent_decoder
from heddle.extensions.hybrids.mamba_mixer import Norms, mamba
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.decoder import Decoder
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    read, norms = hyperparameters, None
    if read.get("state.norm_eps") is not None:
        norms = Norms(read.number("state.norm_eps"), stored=False)
    return recurrent_decoder(read, mamba(read, read.integer("width"), norms))


def _read_gguf(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """All layers are recurrent. Norms have the epsilon of the others (llama.cpp, `build_norm`)."""
    names.recurrent_in_all(values)
    names.channels_as_heads(values)
    if metadata.get("ssm.dt_b_c_rms") is True:
        values["state.norm_eps"] = values.get("norm_eps")


_KEYS = {
    "norm_eps": "layer_norm_epsilon",
    "state.inner": "intermediate_size",
    "state.key_dim": "state_size",
    "state.taps": "conv_kernel",
    "state.step_rank": "time_step_rank",
}
_FOLDER = FolderNames(
    hyperparameters=_KEYS,
    outside={"embedding": "model.embeddings", "output_norm": "model.norm_f"},
    layer=names.FOLDER_ONE_PART | names.folder_scan("mixer"),
    tensors=names.folder_scan_vectors("mixer"),
    read=config.sizes,
)
FAMILY = Family(
    build=build,
    gguf={
        "mamba": GGUFNames(
            hyperparameters=names.GGUF_STEP_RANK,
            layer=names.GGUF_ONE_PART | names.GGUF_SCAN,
            tensors=names.GGUF_VECTORS,
            read=_read_gguf,
        )
    },
    hf={
        "mamba": _FOLDER,
        "falcon_mamba": replace(
            _FOLDER, hyperparameters=_KEYS | {"state.norm_eps": "mixer_rms_eps"}
        ),
    },
)
