"""The types that a user may quantise to."""

import enum


class Target(enum.StrEnum):
    """Names of `heddle.weights.mix.TARGETS`."""

    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q5_K = "q5_k"
    Q4_K = "q4_k"
    Q4_0 = "q4_0"
    MXFP4 = "mxfp4"
