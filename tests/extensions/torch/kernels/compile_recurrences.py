"""Compiles the kernels of recurrences for a GPU that need not be there; run as a program.

The interpreter runs what the compiler refuses, such as values of a branch whose types differ.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from heddle.extensions.torch.kernels import linear_blocks, recurrence, selective_scan
from heddle.extensions.torch.open_blocks import BLOCK

H100 = GPUTarget("cuda", 90, 32)
INTEGERS = (
    *("width", "begin", "matrix_at", "keys_at", "factors_at", "solved_at", "reduced_at"),
    *("heads", "key_heads", "key_dim", "value_dim", "channels", "elements"),
)
POINTERS_TO_INTEGERS = ("facts", "blocks", "of_tokens")


def compiled(kernel: Any, constants: dict[str, Any], **options: Any) -> Any:
    """A kernel for the numbers of a large model, which are multiples of 16."""
    types = dict.fromkeys(constants, "constexpr")
    types |= {name: "i32" for name in INTEGERS if name in kernel.arg_names}
    types |= {name: "*i64" for name in POINTERS_TO_INTEGERS if name in kernel.arg_names}
    signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
    places = {name: (place,) for place, name in enumerate(signature)}
    values = {places[name]: value for name, value in constants.items()}
    aligned = {
        places[name]: [["tt.divisibility", 16]] for name in signature if places[name] not in values
    }
    return triton.compile(
        ASTSource(kernel, signature, values, aligned), target=H100, options=options
    )


def main() -> None:
    for corrects, by_row in ((True, True), (False, False)):
        flags = {"CORRECTS": corrects, "BY_ROW": by_row, "TILED": corrects}
        kind = flags | {"KEYS": 128, "BLOCK": BLOCK}
        compiled(linear_blocks._compare, kind)
        options = {"num_warps": 4, "num_stages": 1, "maxnreg": linear_blocks._REGISTERS}
        compiled(linear_blocks._walk, {**kind, "SKIP": not corrects, "VALUES": 32}, **options)
    shape = {"TAPS": 4, "CHANNELS": 256}
    compiled(recurrence._convolve, {**shape, "BIAS": True, "SILU": True})
    compiled(recurrence._remember, shape)
    compiled(selective_scan._scan, {"ELEMENTS": 16, "CHANNELS": 64})


if __name__ == "__main__":
    main()
