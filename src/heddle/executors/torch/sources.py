"""The Python code that determines the bits of pages on a torch device. It imports no torch."""

from heddle.executors.arithmetic import MODEL_SOURCES

SOURCES = (
    *MODEL_SOURCES,
    "executors/quantise.py",
    "executors/torch/attention.py",
    "executors/torch/bits.py",
    "executors/torch/block_decoders.py",
    "executors/torch/blocks.py",
    "executors/torch/cache.py",
    "executors/torch/constants.py",
    "executors/torch/functions.py",
    "executors/torch/grid_decoders.py",
    "executors/torch/kernels/*.py",
    "executors/torch/kv_formats.py",
    "executors/torch/layout.py",
    "executors/torch/linear_blocks.py",
    "executors/torch/open_blocks.py",
    "executors/torch/operations.py",
    "executors/torch/ops.py",
    "executors/torch/recurrence.py",
    "executors/torch/rotation.py",
    "executors/torch/routing.py",
    "executors/torch/states.py",
    "executors/torch/tiles.py",
    "executors/torch/triton_ops.py",
    "executors/torch/upload.py",
    "executors/torch/weights.py",
    "weights/mix.py",
)
