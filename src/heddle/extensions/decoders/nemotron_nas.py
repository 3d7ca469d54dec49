"""Nemotron NAS: a Llama whose layers may lack attention or the feed-forward part, or both.

Layers differ in their feed-forward widths and key/value heads. llama.cpp, `conversion/deci.py` and
`deci.cpp`; vLLM, `nemotron_nas.py`.
"""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, Any

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executor import ModelShape
from heddle.models.base import Sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames
from heddle.weights.huggingface.values import scaled

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

_MULTIPLE = 256
"""Feed-forward widths are rounded up to a multiple of it."""
_WITHOUT = ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens")
"""What a part of a layer may also be: Llama-3.1-Nemotron 51B has matrices in place of parts."""


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    layers, width = read.integer("layers"), read.integer("width")
    heads, kv_heads = (_counts(read, name, layers) for name in ("heads", "kv_heads"))
    most = max(heads)
    head_dim = read.integer("key_dim", width // most if most else None)
    eps = read.number("norm_eps")
    activation = read.choice("activation", ("silu",), "silu")
    positions = rope(read, head_dim, context)

    def layer(own: int, own_kv: int, mlp_width: int) -> Layer:
        attention = None
        if own:
            if own_kv < 1 or own % own_kv:
                read.fail(
                    "kv_heads",
                    f"is {own_kv} in a layer with {own} query heads: it must divide them. Layers"
                    " with a matrix in place of attention are not supported",
                )
            shape = ModelShape(layers, own_kv, head_dim, 1, 1, width)
            spec = Sizes(shape, mlp_width, own, eps).attention(read)
            attention = Attention(width, spec, positions)
        return Layer(attention, GatedMLP(width, mlp_width, activation) if mlp_width else None, eps)

    widths = _counts(read, "mlp_width", layers)
    shape = ModelShape(
        layers=layers,
        kv_heads=max(kv_heads),
        head_dim=head_dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=width,
    )
    parts = zip(heads, kv_heads, widths, strict=True)
    return Decoder(shape, tuple(starmap(layer, parts)), eps)


def _counts(read: Hyperparameters, name: str, layers: int) -> list[int]:
    """A number for each layer; 0: it lacks the part.

    Raises:
        ModelFileError: they are no whole numbers, too few or too many, or all are 0.
    """
    values = read.get(name)
    if not isinstance(values, list):
        return [read.integer(name)] * layers
    if len(values) != layers or not all(type(one) is int and one >= 0 for one in values):
        read.fail(name, f"must have {layers} whole numbers, zero or more, got {values!r}")
    if not any(values):
        read.fail(name, "is 0 in each layer; no layer has this part")
    return values


def _read(config: Config) -> Config:
    """Sizes of each layer, from `block_configs`."""
    blocks, heads = config.get("block_configs"), config.get("num_attention_heads")
    width = config.get("hidden_size")
    if not isinstance(blocks, list):
        raise ModelFileError("config.json: block_configs must be a list", field="block_configs")
    for key, value in (("num_attention_heads", heads), ("hidden_size", width)):
        if type(value) is not int or value < 1:
            raise ModelFileError(
                f"config.json: {key} must be a positive whole number, got {value!r}", field=key
            )
    assert isinstance(heads, int) and isinstance(width, int), "checked"
    parts = [_parts(block, heads, width) for block in blocks]
    return {
        "heads": [heads if kv_heads else 0 for kv_heads, _ in parts],
        "kv_heads": [kv_heads for kv_heads, _ in parts],
        "key_dim": config.get("head_dim") or width // heads,
        "mlp_width": [mlp_width for _, mlp_width in parts],
    }


def _parts(block: object, heads: int, width: int) -> tuple[int, int]:
    """Key/value heads and feed-forward width of a layer; 0: it lacks the part."""
    parts: list[dict[str, Any]] = []
    for name in ("attention", "ffn"):
        part = block.get(name) if isinstance(block, dict) else None
        if not isinstance(part, dict):
            raise ModelFileError(
                f"config.json: an entry of block_configs has no object {name}",
                field="block_configs",
            )
        for key in _WITHOUT:
            if part.get(key):
                raise UnsupportedModelError(
                    f"config.json: block_configs.{name}.{key} {part[key]!r} is not supported",
                    param="block_configs",
                )
        parts.append(part)
    attention, ffn = parts
    return _kv_heads(attention, heads), _mlp_width(ffn, width)


def _kv_heads(attention: dict[str, Any], heads: int) -> int:
    group = attention.get("n_heads_in_group")
    if attention.get("no_op"):
        return 0
    if type(group) is not int or group < 1 or heads % group:
        raise ModelFileError(
            f"config.json: block_configs.attention.n_heads_in_group must divide the {heads} query"
            f" heads, got {group!r}",
            field="block_configs",
        )
    return heads // group


def _mlp_width(ffn: dict[str, Any], width: int) -> int:
    multiple, own = ffn.get("ffn_mult"), ffn.get("intermediate_size")
    if ffn.get("no_op"):
        return 0
    if type(own) is int and own > 0:
        return own
    if not isinstance(multiple, float | int):
        raise ModelFileError(
            f"config.json: block_configs.ffn.ffn_mult must be a number, got {multiple!r}",
            field="block_configs",
        )
    scaled("block_configs.ffn.ffn_mult", multiple, 1)
    least = int(2 * multiple * width / 3)
    return -(-least // _MULTIPLE) * _MULTIPLE


FAMILY = Family(
    build=build,
    gguf={"deci": GGUFNames(values=INTERLEAVED)},
    hf={"nemotron-nas": FolderNames(read=_read)},
)
