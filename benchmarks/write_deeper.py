"""Writes a deeper model with a small model inside, to measure what a draft model gains.

    python benchmarks/write_deeper.py SMALL.gguf OUT.gguf [--times 4] [--strength 0.05]

The layers of the small model come first. The further ones are copies of them whose last matrices,
those that write to the residual stream, are scaled by `--strength`. So the deep model costs
`--times` as much and says nearly the same: with strength 0 exactly the same, and less the larger it
is. Only for matrices in Q4_1 and F32, the types of the default model. Needs the `gguf` package.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAST = ("attn_output.weight", "ffn_down.weight")


def scaled(data: NDArray[Any], kind: GGMLQuantizationType, strength: float) -> NDArray[Any]:
    """The tensor times `strength`. A block of Q4_1 begins with its scale and minimum as float16."""
    copy = data.copy()
    if kind is GGMLQuantizationType.F32:
        return copy * np.float32(strength)
    size = {GGMLQuantizationType.Q4_1: (20, 2), GGMLQuantizationType.Q8_0: (34, 1)}[kind]
    blocks = copy.reshape(-1, size[0])
    factors = blocks[:, : 2 * size[1]].copy().view(np.float16) * np.float16(strength)
    blocks[:, : 2 * size[1]] = factors.view(np.uint8)
    return copy


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("small")
    options.add_argument("out")
    options.add_argument("--times", type=int, default=4)
    options.add_argument("--strength", type=float, default=0.05)
    given = options.parse_args()
    small = GGUFReader(given.small)
    name = str(small.fields["general.architecture"].contents())
    layers = int(small.fields[f"{name}.block_count"].contents())
    writer = GGUFWriter(given.out, name)
    for field in small.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value, outer = field.contents(), field.types[0]
        inner = field.types[-1] if outer is GGUFValueType.ARRAY else None
        if field.name == f"{name}.block_count":
            value = layers * given.times
        writer.add_key_value(field.name, value, outer, inner)
    for tensor in small.tensors:
        kind = tensor.tensor_type
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=kind)
        if not tensor.name.startswith("blk."):
            continue
        _, number, last = tensor.name.split(".", 2)
        data = tensor.data if last not in LAST else scaled(tensor.data, kind, given.strength)
        for copy in range(1, given.times):
            writer.add_tensor(f"blk.{int(number) + copy * layers}.{last}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
