"""Matrices that a folder of safetensors stores quantised: GPTQ, AWQ, FP8, MLX and others."""

from heddle.doors import Extension

_GROUPED, _SCALED = "heddle.extensions.packed.grouped", "heddle.extensions.packed.scaled"

EXTENSION = Extension(
    quantisations={
        "gptq": f"{_GROUPED}:gptq",
        "awq": f"{_GROUPED}:awq",
        "compressed-tensors": f"{_SCALED}:compressed_tensors",
        "fp8": f"{_SCALED}:fp8",
        "modelopt": f"{_SCALED}:modelopt",
        "bitnet": "heddle.extensions.packed.ternary:bitnet",
        "bitsandbytes": "heddle.extensions.packed.bitsandbytes:bitsandbytes",
        "mlx": "heddle.extensions.packed.mlx:mlx",
    }
)
