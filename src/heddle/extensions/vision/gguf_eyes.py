"""Eyes in GGUF files of their own, which llama.cpp calls mmproj.

The names are those of llama.cpp (`gguf-py/gguf/constants.py`, `tools/mtmd/clip-impl.h`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.vision.eyes import EyesCheckpoint, EyesHyperparameters, Origin, check_fits
from heddle.extensions.vision.naming import LIMITS, Names, origins
from heddle.weights.checkpoint import FilePlace, TensorInfo
from heddle.weights.gguf.file import GGUFFile
from heddle.weights.gguf.names import ARCHITECTURE
from heddle.weights.hyperparameters import Bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from heddle.extensions.vision.eyes import Floats
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.files import FileStamp

    Shapes = Mapping[str, tuple[int, ...]]
    Metadata = Mapping[str, object]

CLIP = "clip"
"""Value of `general.architecture` in these files."""
_WINDOW = 112
"""Pixels along the side of a window, where the file does not say."""
_KEYS = {
    "layers": "clip.vision.block_count",
    "width": "clip.vision.embedding_length",
    "heads": "clip.vision.attention.head_count",
    "norm_eps": "clip.vision.attention.layer_norm_epsilon",
    "patch": "clip.vision.patch_size",
    "image_size": "clip.vision.image_size",
}
_SCALE, _MERGE = "clip.vision.projector.scale_factor", "clip.vision.spatial_merge_size"
_LAYER = {
    "attention_norm": "ln1",
    **{f"attention.{part}": f"attn_{part}" for part in ("q", "k", "v", "qkv")},
    **{f"attention.{part}": f"attn_{part}" for part in ("q_norm", "k_norm")},
    "attention.output": "attn_out",
    "mlp_norm": "ln2",
    **{f"mlp.{part}": f"ffn_{part}" for part in ("gate", "up", "down")},
    "after_attention_norm": "attn_post_norm",
    "after_mlp_norm": "ffn_post_norm",
    "attention_scale": "ls1",
    "mlp_scale": "ls2",
}
_LIMITS = {
    f"{part}.{limit}.weight": f"{_LAYER[part]}.{limit}"
    for part in _LAYER
    if part.startswith(("attention.", "mlp."))
    for limit in LIMITS
}
_STANDARD = {
    "projection.standard_bias.weight": "v.std_bias",
    "projection.standard_factor.weight": "v.std_scale",
}
_OUTSIDE = {"patches": "v.patch_embd", "positions": "v.position_embd", "pre_norm": "v.pre_ln"}
_SECOND_FRAME = "v.patch_embd.weight.1"
_ROW_BREAKS = ("v.token_embd.img_break", "v.image_newline", "model.image_newline")


class GGUFSource:
    """See :class:`heddle.extensions.vision.eyes.Source`."""

    format = "gguf"

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.path: Path = file.path
        self.metadata = file.metadata
        self.labels = {label: one.shape for label, one in file.tensors.items()}

    @property
    def stamps(self) -> Mapping[Path, FileStamp]:
        return {self._file.path: self._file.stamp}

    def info(self, label: str) -> TensorInfo:
        one = self._file.tensors[label]
        place = FilePlace(self._file.descriptor, one.offset)
        return TensorInfo(label, one.shape, one.type, one.nbytes, label, place)

    def read(self, label: str, start: int, size: int) -> NDArray[np.uint8]:
        offset = self._file.tensors[label].offset
        return np.frombuffer(self._file.read(offset + start, size, label), np.uint8)

    def check_unchanged(self) -> None:
        self._file.check_unchanged()

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFEyes:
    """A kind of eyes in GGUF files.

    Attributes:
        kind: its canonical name.
        outside: parts outside of layers beside the usual ones, by canonical part; empty: such a
            tensor means nothing.
        texts: values of `general.architecture` of text models that may have such eyes.
        values: values that files do not have.
        merge: key of the number of patches along the side of what becomes one row; empty: none.
        gelu: the form of GELU that the models were trained with. llama.cpp takes that with tanh.
        has_size: whether tiles have the size that the file names.
        splits_heads: as in :class:`heddle.extensions.vision.naming.Names`.
        interleaves: whether rows of q and k are ordered so that rotation pairs neighbours.
        transposed: canonical names of matrices that files have transposed.
        with_parts: the canonical name of the kind where files have a tensor, by its name.
        read: further hyperparameters, from the metadata and the shapes of tensors.
    """

    kind: str
    outside: Mapping[str, str]
    texts: tuple[str, ...]
    values: Mapping[str, object] = field(default_factory=dict)
    merge: str = ""
    gelu: str = "gelu"
    has_size: bool = True
    interleaves: bool = False
    splits_heads: bool = False
    transposed: tuple[str, ...] = ()
    with_parts: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[Metadata, Shapes], Mapping[str, object]] = lambda metadata, shapes: {}


def _positions_side(metadata: Metadata, shapes: Shapes) -> dict[str, object]:
    rows = shapes.get("v.position_embd.weight", (0,))[0]
    if math.isqrt(rows) ** 2 != rows or not rows:
        label = "v.position_embd.weight"
        raise ModelFileError(f"tensor {label} must have a square number of rows", field=label)
    return {"positions_side": math.isqrt(rows)}


def _deepstack(metadata: Metadata, shapes: Shapes) -> dict[str, object]:
    flags = metadata.get("clip.vision.is_deepstack_layers")
    listed = flags.tolist() if isinstance(flags, np.ndarray) else []
    layers = [place for place, flag in enumerate(listed) if flag is True]
    return {"deepstack_layers": layers, **_positions_side(metadata, shapes)}


def _windows(metadata: Metadata, shapes: Shapes) -> dict[str, object]:
    period, layers = metadata.get("clip.vision.n_wa_pattern"), metadata.get(_KEYS["layers"])
    window = metadata.get("clip.vision.window_size", _WINDOW)
    patch = metadata.get(_KEYS["patch"])
    found: dict[str, object] = {}
    if isinstance(period, int) and isinstance(layers, int) and 0 < period <= layers <= len(shapes):
        found["full_layers"] = list(range(period - 1, layers, period))
    if isinstance(window, int) and isinstance(patch, int) and patch > 0:
        found["window"] = window // patch
    return found


def _features(metadata: Metadata, shapes: Shapes) -> dict[str, object]:
    """The layers after which states are read; all but the last one, where the file does not say."""
    listed, layers = metadata.get("clip.vision.feature_layer"), metadata.get(_KEYS["layers"])
    places = listed.tolist() if isinstance(listed, np.ndarray) else []
    if isinstance(layers, int) and not places:
        places = [layers - 1]
    if not places or not all(isinstance(one, int) and one >= 0 for one in places):
        return {}
    several = {"feature_layers": places} if len(places) > 1 else {}
    return {"layers": max(places), "keeps_first": False, **several}


_QWEN = {"projection.norm": "v.post_ln", "projection.up": "mm.0", "projection.down": "mm.2"}
_QWEN2 = {**_QWEN, "positions": ""}  # older files have zeros there
_QWEN_VALUES = {"merge": 2, "projection_activation": "gelu_erf", "rope.base": 10_000.0}
_TWO_LINEAR = {"projection.up": "mm.1", "projection.down": "mm.2"}
_GELU_BETWEEN = {"projection_activation": "gelu_erf"}
_PIXTRAL = GGUFEyes(
    kind="pixtral",
    outside={"projection.norm": "mm.input_norm", "projection.merge": "mm.patch_merger"}
    | _TWO_LINEAR,
    texts=("llama", "mistral3"),
    values={"merge": 1, "rope.base": 10_000.0, **_GELU_BETWEEN},
    merge=_MERGE,
    gelu="gelu_erf",
    interleaves=True,
    with_parts={"projection.merge.weight": "mistral3"},
)

KINDS: Mapping[str, GGUFEyes] = {
    "idefics3": GGUFEyes(
        kind="idefics3",
        outside={"output_norm": "v.post_ln", "projection.matrix": "mm.model.fc"},
        texts=("llama",),
        merge=_SCALE,
    ),
    "qwen2vl_merger": GGUFEyes(
        kind="qwen2_vl",
        outside=_QWEN2,
        texts=("qwen2vl",),
        values=_QWEN_VALUES,
        merge=_MERGE,
        has_size=False,
    ),
    "qwen2.5vl_merger": GGUFEyes(
        kind="qwen2_5_vl",
        outside=_QWEN2,
        texts=("qwen2vl",),
        values=_QWEN_VALUES,
        merge=_MERGE,
        has_size=False,
        read=_windows,
    ),
    "qwen3vl_merger": GGUFEyes(
        kind="qwen3_vl",
        outside=_QWEN,
        texts=("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
        values=_QWEN_VALUES,
        merge=_MERGE,
        has_size=False,
        read=_deepstack,
    ),
    "gemma3": GGUFEyes(
        kind="gemma3",
        outside={
            "output_norm": "v.post_ln",
            "projection.norm": "mm.soft_emb_norm",
            "projection.matrix": "mm.input_projection",
        },
        texts=("gemma3",),
        values={"merge": 4},
        merge=_SCALE,
        transposed=("projection.matrix.weight",),
    ),
    "gemma4v": GGUFEyes(
        kind="gemma4",
        outside={"projection.matrix": "mm.input_projection"},
        texts=("gemma4",),
        values={"merge": 3, "rope.base": 100.0},
        merge=_SCALE,
        has_size=False,
        splits_heads=True,
        read=lambda metadata, shapes: {"activation": "gelu"},  # whatever the file says
    ),
    "pixtral": _PIXTRAL,
    "internvl": GGUFEyes(
        kind="internvl",
        outside={
            "output_norm": "v.post_ln",
            "projection.norm": "mm.model.mlp.0",
            "projection.up": "mm.model.mlp.1",
            "projection.down": "mm.model.mlp.3",
        },
        texts=("qwen2", "qwen3", "llama"),
        values=_GELU_BETWEEN,
        merge=_SCALE,
        gelu="gelu_erf",
    ),
    "lfm2": GGUFEyes(
        kind="lfm2_vl",
        outside={"output_norm": "v.post_ln", "projection.norm": "mm.input_norm", **_TWO_LINEAR},
        texts=("lfm2",),
        values={"merge": 2, **_GELU_BETWEEN},
        merge=_SCALE,
        has_size=False,
        read=_positions_side,
    ),
    "mlp": GGUFEyes(
        kind="llava",
        outside={"projection.up": "mm.0", "projection.down": "mm.2"},
        texts=("llama", "granite"),
        values=_GELU_BETWEEN,
        with_parts={"row_break.weight": "llava_next"},
        read=_features,
    ),
    "llama4": GGUFEyes(
        kind="llama4",
        outside={
            "output_norm": "v.post_ln",
            "adapter.up": "mm.model.mlp.1",
            "adapter.down": "mm.model.mlp.2",
            "projection.matrix": "mm.model.fc",
        },
        texts=("llama4",),
        values={"rope.base": 10_000.0},
        merge=_SCALE,
        gelu="gelu_erf",
    ),
    "glm4v": GGUFEyes(
        kind="glm4v",
        outside={
            "pre_norm": "v.norm_embd",
            "output_norm": "v.post_ln",
            "projection.merge": "mm.patch_merger",
            "projection.matrix": "mm.model.fc",
            "projection.middle_norm": "mm.post_norm",
            **{f"projection.{part}": f"mm.{part}" for part in ("gate", "up", "down")},
        },
        texts=("glm4", "glm4moe"),
        values={"merge": 2, "rope.base": 10_000.0},
        merge=_MERGE,
    ),
}
"""Kinds of eyes by their `clip.projector_type`."""

TEXTS = frozenset(text for kind in KINDS.values() for text in kind.texts)
"""Values of `general.architecture` of text models that may have eyes."""


def gguf_eyes(path: Path, text: Checkpoint) -> EyesCheckpoint:
    """Open the eyes in the file at `path` for a text model.

    Raises:
        ModelSourceError: the file cannot be read.
        ModelFileError: it is damaged, has no eyes, or those of another model.
        UnsupportedModelError: its kind of eyes, or a type of tensors, is not supported.
    """
    file = GGUFFile.open(path)
    try:
        eyes = _eyes(file, text)
        check_fits(eyes, text)
    except BaseException:
        file.close()
        raise
    return eyes


def _eyes(file: GGUFFile, text: Checkpoint) -> EyesCheckpoint:
    source, kind = GGUFSource(file), _kind(file)
    if text.architecture not in kind.texts:
        raise ModelFileError(
            f"{file.path} has eyes of kind {kind.kind}, but the model of {text.path} has the"
            f" architecture {text.architecture}; these eyes belong to another model",
            field="clip.projector_type",
        )
    read = _read(kind, file, text.hyperparameters.integer("width"))
    row_break = next((one for one in _ROW_BREAKS if one in source.labels), _ROW_BREAKS[0])
    names = Names(
        outside={part: name for part, name in {**_OUTSIDE, **kind.outside}.items() if name},
        prefix="v.blk.",
        layer=_LAYER,
        exact={"first.weight": "v.class_embd", "row_break.weight": row_break, **_STANDARD},
        exact_in_layer=_LIMITS,
        deepstack="v.deepstack.",
        in_deepstack={"norm": "norm", "up": "fc1", "down": "fc2"},
        transposed=kind.transposed,
        splits_heads=kind.splits_heads,
    )
    listed = read.get("deepstack_layers", [])
    assert isinstance(listed, list), "`EyesHyperparameters` has checked it"
    table = names.table(read.integer("layers"), listed)
    if _is_swapped(source.labels, read.integer("width")):
        table = {_swapped(name): label for name, label in table.items()}
    found = origins(names, table, source.labels)
    if _SECOND_FRAME in source.labels and "patches.weight" in found:
        found["patches.weight"] = _both_frames(found["patches.weight"], source.labels)
    if kind.interleaves:
        found |= _in_halves(found, read.integer("heads"))
    name = next((name for part, name in kind.with_parts.items() if part in found), kind.kind)
    return EyesCheckpoint(name, source, read, found, lambda one: table.get(one, one))


def _kind(file: GGUFFile) -> GGUFEyes:
    architecture = file.metadata.get(ARCHITECTURE)
    if architecture != CLIP:
        raise ModelFileError(
            f"{file.path} has no eyes: its {ARCHITECTURE} is {architecture!r}, not {CLIP!r}",
            field=ARCHITECTURE,
        )
    keys = ("clip.projector_type", "clip.vision.projector_type")
    key = next((one for one in keys if one in file.metadata), keys[0])
    named = file.metadata.get(key)
    kind = KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise UnsupportedModelError(
            f"{file.path}: {key} {named!r} is not supported; supported: {', '.join(KINDS)}",
            param=key,
        )
    return kind


def _read(kind: GGUFEyes, file: GGUFFile, text_width: int) -> EyesHyperparameters:
    metadata = file.metadata
    shapes = {label: one.shape for label, one in file.tensors.items()}
    keys = {**_KEYS, **({"merge": kind.merge} if kind.merge else {})}
    values = dict(kind.values)
    values |= {name: metadata[key] for name, key in keys.items() if key in metadata}
    if not kind.has_size:
        values.pop("image_size", None)
    values["activation"] = _activation(kind, metadata)
    values |= kind.read(metadata, shapes)
    values["text_width"] = text_width
    # The file's own key of this is not always right.
    pair = [shapes.get(f"v.blk.0.ffn_{part}.weight", ()) for part in ("up", "down")]
    if _is_swapped(shapes, values.get("width")):
        pair = pair[::-1]
    values["mlp_width"] = pair[0][0] if pair[0] else None
    return EyesHyperparameters(
        values, lambda name: keys.get(name, name), Bounds.of(shapes.values())
    )


def _activation(kind: GGUFEyes, metadata: Metadata) -> str:
    if metadata.get("clip.use_silu") is True:
        return "silu"
    return kind.gelu if metadata.get("clip.use_gelu") is True else "gelu_quick"


def _is_swapped(shapes: Shapes, width: object) -> bool:
    """Whether the names of the matrices of feed-forward layers are swapped, as in older files."""
    up, down = (shapes.get(f"v.blk.0.ffn_{part}.weight", ()) for part in ("up", "down"))
    return len(up) == 2 and len(down) == 2 and down[1] == width != up[1]


def _swapped(name: str) -> str:
    for one, other in (("mlp.up.", "mlp.down."), ("mlp.down.", "mlp.up.")):
        if one in name:
            return name.replace(one, other)
    return name


def _both_frames(first: Origin, shapes: Shapes) -> Origin:
    """The sum of the weights of both frames, which are the same picture."""
    label = first.labels[0]
    if shapes[_SECOND_FRAME] != shapes[label]:
        raise ModelFileError(
            f"tensor {_SECOND_FRAME} has shape {shapes[_SECOND_FRAME]}, and {label} has"
            f" {shapes[label]}",
            field=_SECOND_FRAME,
        )
    return replace(first, labels=(label, _SECOND_FRAME), make=lambda found: found[0] + found[1])


def _in_halves(found: Mapping[str, Origin], heads: int) -> dict[str, Origin]:
    """q and k with rows so that rotation pairs the halves of a head, as in folders."""
    made = {}
    for name, origin in found.items():
        if name.endswith((".attention.q.weight", ".attention.k.weight")):
            if origin.shape[0] % (2 * heads):
                raise ModelFileError(
                    f"tensor {origin.labels[0]} has {origin.shape[0]} rows, which {heads} heads"
                    " do not share",
                    field=origin.labels[0],
                )
            made[name] = replace(origin, make=lambda given: _halves(given[0], heads))
    return made


def _halves(values: Floats, heads: int) -> Floats:
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)
