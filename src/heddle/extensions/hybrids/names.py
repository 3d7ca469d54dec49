"""Names in files that several families with recurrent layers have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

GGUF_MIXER = {
    "mixer.conv": "ssm_conv1d",
    "mixer.norm": "ssm_norm",
    "mixer.output": "ssm_out",
}
GGUF_MAMBA = GGUF_MIXER | {"mixer.inputs": "ssm_in"}
"""Parts of Mamba-2."""
GGUF_VECTORS = {
    "mixer.decay_rates.weight": "ssm_a",
    "mixer.step_bias.weight": "ssm_dt.bias",
    "mixer.skip.weight": "ssm_d",
}
GGUF_SCAN = {"mixer.scan_inputs": "ssm_x", "mixer.step": "ssm_dt"}
"""Parts that Mamba has beside those of Mamba-2."""
GGUF_STEP_RANK = {"state.step_rank": "ssm.time_step_rank"}
GGUF_ONE_PART = GGUF_MAMBA | {"norm": "attn_norm", "attention_norm": ""}
"""Parts of layers of one part."""

FOLDER_MAMBA_KEYS = {
    "state.heads": "mamba_n_heads",
    "state.groups": "mamba_n_groups",
    "state.key_dim": "mamba_d_state",
    "state.taps": "mamba_d_conv",
}
FOLDER_MAMBA = {
    "mixer.inputs": "mamba.in_proj",
    "mixer.conv": "mamba.conv1d",
    "mixer.norm": "mamba.norm",
    "mixer.output": "mamba.out_proj",
}
FOLDER_ONE_PART = {
    "norm": "norm",
    "mixer.inputs": "mixer.in_proj",
    "mixer.conv": "mixer.conv1d",
    "mixer.norm": "mixer.norm",
    "mixer.output": "mixer.out_proj",
}
"""Parts of layers of one part, which files call mixer."""


def folder_vectors(part: str) -> dict[str, str]:
    """Vectors of a Mamba-2 mixer that folders call `part`."""
    return {
        "mixer.decay_rates.weight": f"{part}.A_log",
        "mixer.step_bias.weight": f"{part}.dt_bias",
        "mixer.skip.weight": f"{part}.D",
    }


def folder_scan(part: str) -> dict[str, str]:
    """Parts that a Mamba mixer, which folders call `part`, has beside those of Mamba-2."""
    return {"mixer.scan_inputs": f"{part}.x_proj", "mixer.step": f"{part}.dt_proj"}


def folder_scan_vectors(part: str) -> dict[str, str]:
    """Vectors of a Mamba mixer that folders call `part`. The bias of the step sizes is one."""
    return folder_vectors(part) | {"mixer.step_bias.weight": f"{part}.dt_proj.bias"}


def recurrent_in_all(values: dict[str, Any]) -> None:
    """All layers have a recurrence."""
    if isinstance(values.get("layers"), int):
        values["recurrent_layers"] = [True] * values["layers"]


def channels_as_heads(values: dict[str, Any]) -> None:
    """Each channel of Mamba is a head of one element; the file has the rank under heads' key."""
    values["state.heads"] = values.get("state.inner")


def recurrent_without_heads(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """Layers of GGUF files have a recurrence where their number of key/value heads is 0."""
    kv_heads = values.get("kv_heads")
    if isinstance(kv_heads, list):
        values["recurrent_layers"] = [not count for count in kv_heads]
        most = max(kv_heads, default=0)
        values["kv_heads"] = [count or most for count in kv_heads]
