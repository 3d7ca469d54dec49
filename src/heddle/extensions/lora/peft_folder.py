"""Reads the folder of an adapter as PEFT writes it: `adapter_config.json` and
`adapter_model.safetensors`."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from heddle.closing import Closing
from heddle.errors import ModelFileError, ModelSourceError, UnsupportedModelError
from heddle.extensions.lora.pairs import Pair, Side, pairs_of
from heddle.extensions.lora.peft_scales import CONFIG, Scales
from heddle.weights.huggingface.json_files import read_json
from heddle.weights.huggingface.safetensors import SafetensorsFile
from heddle.weights.huggingface.stored import shards
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"

_PREFIX = "base_model.model."
_SIDE = re.compile(
    r"(?P<module>.+)\.lora_(?:(?P<side>[AB])(?:\.default)?\.weight"
    r"|embedding_(?P<table>[AB])(?:\.default)?"
    r"|(?P<magnitude>magnitude)_vector(?:\.default)?(?:\.weight)?)"
)
_WHOLE = re.compile(
    r"(?P<module>.*?(?:lm_head|embed_tokens|wte|embed_out|embeddings|embed_in))"
    r"(?:\.base_layer|\.modules_to_save(?:\.default)?)?\.weight"
)
"""Whole matrices that may be those of the output and of the embedding."""
_OF_ALL_EXPERTS = re.compile(r".+\.experts(?:\.base_layer)*")
"""Modules whose parameters are stacks of experts (`target_parameters`)."""
_TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}

_RETRAIN = "train the adapter without it"
_MERGE = (
    "merge the adapter into its model with PEFT's merge_and_unload(), and load the merged model"
)
_REFUSED = {
    "ensure_weight_tying": "the adapter changes the embedding and the output matrix by one tensor;"
    f" {_MERGE}",
    "trainable_token_indices": f"the adapter changes rows of the embedding; {_MERGE}",
    "fan_in_fan_out": f"the adapter changes transposed matrices, such as those of GPT-2; {_MERGE}",
    "lora_bias": f"the adapter changes biases; {_MERGE}",
    "alora_invocation_tokens": "the adapter is active behind certain tokens alone (aLoRA);"
    f" {_RETRAIN}",
    "layer_replication": f"the adapter's model has layers twice; {_MERGE}",
    "use_qalora": f"the adapter reads means of inputs (QA-LoRA); {_RETRAIN}",
    "use_bdlora": f"its matrices are of blocks (BD-LoRA); {_RETRAIN}",
    "arrow_config": f"the adapter chooses among others for each token (Arrow); {_RETRAIN}",
    "kasa_config": f"the adapter removes a part of the matrices it changes (KaSA); {_MERGE}",
    "monteclora_config": f"the adapter is a distribution (MonteCLoRA); {_RETRAIN}",
}
"""Fields that change the arithmetic of an adapter if they are set, and why they are refused."""
_WITHOUT_EFFECT = frozenset(
    {"alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias"}
    | {"corda_config", "eva_config", "exclude_modules", "inference_mode"}
    | {"init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha"}
    | {"lora_dropout", "lora_ga_config", "megatron_config", "megatron_core", "modules_to_save"}
    | {"peft_type"}
    | {"peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "target_modules"}
    | {"target_parameters", "task_type", "use_dora", "use_rslora", "velora_config"}
)
"""Fields that Heddle reads, or that change nothing where the tensors are known."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""How values of `init_lora_weights` begin by which PEFT changes the matrices of the model, too."""
_OTHER_TENSORS = {
    ".lora_B.bias": "lora_bias",
    "lora_diag": "kasa_config",
}
"""Parts of names of tensors that are of no plain change, and the fields that cause them."""


class PeftFolder(Closing):
    """An open adapter.

    Attributes:
        path: the folder.
        format: "hf": its names and its order of rows are those of `transformers`.
        base_name: the model that it was trained for, as its files call it; may be empty.
        pairs: the changed matrices.
        wholes: whole matrices that are in the place of others, by name with `.weight`.
    """

    format = "hf"

    def __init__(self, folder: Path) -> None:
        """Open the folder's files.

        Raises:
            ModelSourceError: a file is missing or cannot be read.
            ModelFileError: a file is damaged, or files contradict one another.
            UnsupportedModelError: the adapter is not supported.
        """
        self.path = folder
        config = read_json(folder / CONFIG)
        _check_config(config)
        self._scales = Scales.read(config)
        self.wholes: dict[str, Side] = {}
        self._has_magnitudes = bool(config.get("use_dora"))
        self.base_name = str(config.get("base_model_name_or_path") or "")
        self._files: list[SafetensorsFile] = []
        try:
            for name in _weights_in(folder):
                self._files.append(SafetensorsFile.open(folder / name))
            self.pairs = pairs_of(self._sides(), folder)
            self._check_magnitudes()
        except BaseException:
            self.close()
            raise

    def scale(self, pair: Pair) -> float:
        """The factor of a change of the model.

        Raises:
            ModelFileError: the pair has another rank than `adapter_config.json` says.
        """
        module = pair.matrix.removesuffix(".weight")
        wanted = self._scales.rank_of(module)
        if pair.rank != wanted:
            raise ModelFileError(
                f"{self.path}: tensor {pair.a.label} has rank {pair.rank}, and {CONFIG} says"
                f" {wanted} (r, rank_pattern); fetch both files again",
                field=pair.a.label,
            )
        return self._scales.scale_of(module, pair.rank)

    def check_unchanged(self) -> None:
        """Raise ModelFileError if somebody has written to the file since it was opened."""
        for file in self._files:
            file.check_unchanged()

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files:
            file.close()

    def _sides(self) -> Iterator[tuple[str, str, Side]]:
        found = [(file, *one) for file in self._files for one in file.tensors.items()]
        for file, label, stored in found:
            match, whole = _SIDE.fullmatch(label), _WHOLE.fullmatch(label)
            if match is None and whole is None:
                raise self._no_side(label)
            kind = _TYPES.get(stored.dtype)
            if kind is None:
                raise UnsupportedModelError(
                    f"{file.path}: tensor {label} of dtype {stored.dtype} is not supported;"
                    f" supported: {', '.join(_TYPES)}. Save the adapter in one of them",
                    param=label,
                )
            side = Side(label, stored.shape, partial(_values, file, label, kind))
            if match is None:
                assert whole is not None, "checked"
                self.wholes[f"{whole['module'].removeprefix(_PREFIX)}.weight"] = side
                continue
            module = match["module"].removeprefix(_PREFIX)
            which = (match["magnitude"] or match["side"] or f"table_{match['table']}").lower()
            if _OF_ALL_EXPERTS.fullmatch(module) and len(stored.shape) == 2:
                side = self._by_expert(side, which)
            yield f"{module}.weight", which, side

    def _by_expert(self, side: Side, which: str) -> Side:
        """A side of all experts: the rows of `a` are by expert, the columns of `b` by rank."""
        rank, axis = self._scales.rank, int(which == "b")
        experts, rest = divmod(side.shape[axis], rank)
        if rest or not experts:
            raise ModelFileError(
                f"{self.path}: tensor {side.label} has shape {side.shape}, whose"
                f" {side.shape[axis]} {'columns' if axis else 'rows'} are not those of experts of"
                f" rank {rank} ({CONFIG}, r); fetch both files again",
                field=side.label,
            )
        if axis:
            rows = side.shape[0]

            def read() -> NDArray[np.float32]:
                return side.read().reshape(rows, rank, experts).transpose(2, 0, 1)

            return Side(side.label, (experts, rows, rank), read)
        shape = (experts, rank, side.shape[1])
        return Side(side.label, shape, lambda: side.read().reshape(shape))

    def _check_magnitudes(self) -> None:
        """Raise an error unless all pairs have the rows' lengths that DoRA needs, or none has."""
        for pair in self.pairs:
            if self._has_magnitudes == (pair.magnitude is not None):
                continue
            side = pair.magnitude or pair.b
            raise ModelFileError(
                f"{self.path}: tensor {side.label} has"
                f" {'no' if pair.magnitude is None else 'a'} lora_magnitude_vector beside it, and"
                f" {CONFIG} says use_dora {self._has_magnitudes}; fetch both files again",
                field=side.label,
            )

    def _no_side(self, label: str) -> UnsupportedModelError:
        field = next((one for part, one in _OTHER_TENSORS.items() if part in label), None)
        reason = f"the adapter has whole copies of modules; {_MERGE}"
        if field is not None:
            reason = _REFUSED[field]
        return UnsupportedModelError(
            f"{self.path}: tensor {label} is not supported: {reason}", param=label
        )


def _values(file: SafetensorsFile, label: str, kind: TensorType) -> NDArray[np.float32]:
    stored = file.tensors[label]
    raw = np.frombuffer(file.read(stored.offset, stored.nbytes, label), np.uint8)
    return dequantize(raw, kind, stored.shape)


def _weights_in(folder: Path) -> list[str]:
    """Names of the files with tensors."""
    if (folder / WEIGHTS).is_file() or (folder / f"{WEIGHTS}.index.json").is_file():
        return shards(folder, WEIGHTS)
    if (folder / PICKLE).is_file():
        raise pickled(folder / PICKLE)
    raise ModelSourceError(
        f"{folder} has no {WEIGHTS}; fetch the whole folder ({PICKLE}, a pickle, is not read)",
        param="adapter",
    )


def pickled(path: Path) -> UnsupportedModelError:
    """The error for an adapter that is a pickle."""
    return UnsupportedModelError(
        f"{path} is a pickle: opening a pickle can run any code, so Heddle opens none. If you trust"
        " the file, convert it with PEFT: PeftModel.from_pretrained(MODEL, 'FOLDER')"
        f".save_pretrained('NEW') writes {WEIGHTS}",
        param="adapter",
    )


def _check_config(config: Mapping[str, object]) -> None:
    """Raise UnsupportedModelError if the adapter is of another kind than plain LoRA."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModelError(
            f"{CONFIG}: peft_type {kind!r} is not supported; supported: LORA. {_MERGE.capitalize()}"
            if isinstance(kind, str)
            else f"{CONFIG}: peft_type must be 'LORA', got {kind!r}; fetch the file again",
            param="peft_type",
        )
    for field, reason in _REFUSED.items():
        if config.get(field):
            raise _refused(field, config[field], reason)
    patterns = [one for one in ("rank_pattern", "alpha_pattern") if config.get(one)]
    if config.get("target_parameters") and patterns:
        reason = f"with target_parameters, ranks must be equal; {_MERGE}"
        raise _refused(patterns[0], config[patterns[0]], reason)
    unknown = [one for one in config if one not in _WITHOUT_EFFECT and config[one]]
    if unknown:
        _log.warning("%s: unknown fields are ignored: %s", CONFIG, ", ".join(sorted(unknown)))
    bias = config.get("bias", "none")
    if bias not in ("none", None):
        raise _refused("bias", bias, f"the adapter has biases of its model; {_MERGE}")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise _refused(
            "init_lora_weights",
            start,
            "PEFT then changes the model's own matrices, too; save the adapter with"
            " path_initial_model_for_weight_conversion",
        )


def _refused(field: str, value: object, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{CONFIG}: {field} {value!r} is not supported: {reason}", param=field
    )
