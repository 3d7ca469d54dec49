"""Matrices that a folder stores quantised: GPTQ, AWQ, compressed-tensors and FP8.

Each matrix is read as a type that holds its values exactly:

- 4 bits without zero points, in groups of whole blocks of 32 columns: Q4_0.
- 4 bits with zero points: Q5_0, since code - zero point lies in [-16, 15].
- 8 bits without zero points: Q8_0.
- FP8 whose runs of 64 columns share a scale: F8_E4M3.
- Everything else: F32, which takes four bytes a weight. So are integers with scales in float32, and
  groups of scattered columns (`desc_act`).

The scale of a block of integers has 16 bits. A scale that 16 bits do not hold is refused, never
rounded.
"""
