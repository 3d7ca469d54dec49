"""Rotary positions as a checkpoint describes them, with scalings for long contexts.

Each scaling amounts to a divisor of each pair's frequency and a factor on queries and keys. A
:class:`heddle.models.ops.RopeSpec` holds both.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.models.ops import RopeSpec, Temperature

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters

_SCALINGS = ("none", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")


def rope(
    hyperparameters: Hyperparameters, head_dim: int, context: int, base: float | None = 10_000.0
) -> RopeSpec:
    """The rotation of heads of `head_dim` elements.

    Args:
        hyperparameters: the checkpoint's hyperparameters.
        head_dim: elements of a query and key head.
        context: most tokens of a sequence as it will be served; 0: the model's own limit.
            `longrope` has divisors for the original context and others for longer sequences, and
            `dynamic` stretches the base for longer sequences. This argument decides, not the length
            of a sequence, or cached keys would be wrong.
        base: default frequency base; None: the checkpoint must have one.

    Raises:
        ModelFileError: a hyperparameter is missing or makes no sense.
        UnsupportedModelError: the scaling is not known.
    """
    read = hyperparameters
    dim = read.integer("rope.dim", head_dim)
    if dim > head_dim or dim % 2:
        read.fail("rope.dim", f"must be even and at most {head_dim}, a head's size, got {dim}")
    interleaved = read.flag("rope.interleaved", False)
    spec = RopeSpec(dim, read.number("rope.base", base), interleaved)
    return replace(_scaled(read, spec, context), axes=axes_of_pairs(read, dim // 2))


def axes_of_pairs(read: Hyperparameters, pairs: int) -> tuple[int, ...]:
    """The axis whose place turns each pair: 0 time, 1 height, 2 width; empty: there are no axes.

    Wang et al. 2024 (arXiv:2409.12191, section 2.1). In Qwen3-VL and Qwen3.5 the axes alternate:
    pair 3i + 1 turns by height and pair 3i + 2 by width, as long as these have pairs left.

    Raises:
        ModelFileError: the sections have not so many pairs.
    """
    sections = read.get("rope.sections")
    if sections is None:
        return ()
    numbers = list(sections) if isinstance(sections, list | tuple) else []
    sound = all(isinstance(one, int) and 0 <= one <= pairs for one in numbers)
    if not sound or len(numbers) not in (3, 4) or sum(numbers[:3]) != pairs or any(numbers[3:]):
        read.fail("rope.sections", f"must be three numbers with the sum {pairs}, got {sections!r}")
    _, height, width = numbers[:3]
    if read.flag("rope.sections_alternate", False):
        last = {1: 3 * height, 2: 3 * width}
        return tuple(i % 3 if i < last.get(i % 3, 0) else 0 for i in range(pairs))
    return tuple(axis for axis, count in enumerate(numbers[:3]) for _ in range(count))


def _scaled(read: Hyperparameters, spec: RopeSpec, context: int) -> RopeSpec:
    """The rotation with the scaling that the checkpoint names. Raises as :func:`rope`."""
    kind = read.get("rope.scaling", "linear" if read.get("rope.factor") else "none")
    if not isinstance(kind, str) or kind not in _SCALINGS:
        label = read.label("rope.scaling")
        raise UnsupportedModelError(
            f"{label} {kind!r} is not supported; supported: {', '.join(_SCALINGS)}", param=label
        )
    match kind:
        case "linear":
            return linear(spec, read.number("rope.factor", 1.0))
        case "yarn":
            return yarn(
                spec,
                read.number("rope.factor"),
                read.integer("rope.original_context"),
                read.number("rope.beta_fast", 32.0),
                read.number("rope.beta_slow", 1.0),
                read.number("rope.attention_factor", 1.0),
                whole_pairs=read.flag("rope.whole_pairs", True),
            )
        case "llama3":
            return llama3(
                spec,
                read.number("rope.factor"),
                read.integer("rope.original_context"),
                read.number("rope.low_turns", 1.0),
                read.number("rope.high_turns", 4.0),
            )
        case "dynamic":
            trained = read.integer("context")
            return dynamic(
                spec,
                read.number("rope.factor"),
                read.integer("rope.original_context", trained),
                context or trained,
            )
        case "proportional":
            return proportional(
                spec, read.number("rope.share", 1.0), read.number("rope.factor", 1.0)
            )
        case "longrope":
            return longrope(read, spec, context)
    return spec


def temperature(hyperparameters: Hyperparameters, head_dim: int) -> Temperature | None:
    """The growth of queries with their position; None if the checkpoint has none.

    Raises:
        ModelFileError: a hyperparameter is missing or makes no sense.
        UnsupportedModelError: rope rotates only a part of a head, and growth is for whole heads.
    """
    read = hyperparameters
    if not read.get("attention.temperature"):
        return None
    if read.integer("rope.dim", head_dim) != head_dim:
        label = read.label("attention.temperature")
        raise UnsupportedModelError(
            f"{label} is not supported where {read.label('rope.dim')} rotates a part of a head",
            param=label,
        )
    original = read.integer("rope.original_context", read.integer("context"))
    length = read.integer("attention.temperature_length", original)
    return Temperature(read.number("attention.temperature"), length)


def linear(spec: RopeSpec, factor: float) -> RopeSpec:
    """Positions divided by `factor` (Chen et al. 2023, arXiv:2306.15595)."""
    return RopeSpec(spec.dim, spec.base, spec.interleaved, (factor,) * (spec.dim // 2))


def proportional(spec: RopeSpec, share: float, factor: float) -> RopeSpec:
    """Rotate only the leading `share` of the pairs, with the frequencies of all (Gemma 4).

    A pair with an infinite divisor has the angle 0 at any position.
    """
    pairs = spec.dim // 2
    rotated = min(int(share * spec.dim // 2), pairs)
    return replace(spec, factors=(factor,) * rotated + (math.inf,) * (pairs - rotated))


def dynamic(spec: RopeSpec, factor: float, original_context: int, context: int) -> RopeSpec:
    """NTK-aware scaling (Peng et al. 2023, arXiv:2309.00071, appendix B.1; `transformers`).

    The frequency base grows with the length beyond the original context. `transformers` takes the
    length of each sequence; here it is the served context. Up to the original context both are the
    same.
    """
    stretch = factor * max(context / original_context, 1.0) - (factor - 1.0)
    return replace(spec, base=spec.base * stretch ** (spec.dim / max(spec.dim - 2, 1)))


def llama3(
    spec: RopeSpec, factor: float, original_context: int, low_turns: float, high_turns: float
) -> RopeSpec:
    """Llama 3's scaling (Grattafiori et al. 2024, arXiv:2407.21783; `transformers`).

    Pairs that turn more than `high_turns` times within the original context keep their frequency,
    those that turn less than `low_turns` times are stretched by `factor`, the ones between by a mix
    of both.
    """
    divisors = []
    for pair in range(spec.dim // 2):
        frequency = spec.base ** (-2.0 * pair / spec.dim)
        turns = original_context * frequency / (2 * math.pi)
        kept = min(max((turns - low_turns) / max(high_turns - low_turns, 1e-9), 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - kept) / factor + kept))
    return RopeSpec(spec.dim, spec.base, spec.interleaved, tuple(divisors))


def yarn(
    spec: RopeSpec,
    factor: float,
    original_context: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float = 1.0,
    *,
    whole_pairs: bool = True,
) -> RopeSpec:
    """YaRN (Peng et al. 2023, arXiv:2309.00071, section 3).

    Pairs that turn more than `beta_fast` times within the original context keep their frequency.
    Pairs that turn less than `beta_slow` times are stretched by `factor`. Pairs between get a mix
    of both. Queries and keys are multiplied by `attention_factor` * (0.1 ln `factor` + 1). With
    `whole_pairs`, the mix begins and ends at a pair; else it may begin and end between two.
    """

    def pair_that_turns(times: float) -> float:
        turns = original_context / (times * 2 * math.pi)
        return spec.dim * math.log(turns) / (2 * math.log(spec.base))

    first, last = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, spec.dim - 1)
    divisors = []
    for pair in range(spec.dim // 2):
        stretched = min(max((pair - low) / max(high - low, 0.001), 0.0), 1.0)
        divisors.append(1.0 / (stretched / factor + (1.0 - stretched)))
    scale = attention_factor * (0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0)
    return RopeSpec(spec.dim, spec.base, spec.interleaved, tuple(divisors), scale)


def longrope(hyperparameters: Hyperparameters, spec: RopeSpec, context: int) -> RopeSpec:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): each pair has a divisor found by a search.

    Raises:
        ModelFileError: the original context is missing.
    """
    read, scale = hyperparameters, longrope_scale(hyperparameters)
    trained, original = read.integer("context"), read.integer("rope.original_context")
    long = (context or trained) > original
    listed = "rope.long_divisors" if long else "rope.short_divisors"
    if read.get(listed) is not None:
        factors = read.numbers(listed, spec.dim // 2)
        return RopeSpec(spec.dim, spec.base, spec.interleaved, factors, scale)
    divisors = "rope_divisors_long" if long else "rope_divisors_short"
    return RopeSpec(spec.dim, spec.base, spec.interleaved, (), scale, divisors)


def longrope_scale(hyperparameters: Hyperparameters) -> float:
    """The factor on queries and keys that goes with longrope.

    Raises:
        ModelFileError: the original context is missing.
    """
    read = hyperparameters
    original, scale = read.integer("rope.original_context"), 1.0
    factor = read.integer("context") / original
    if factor > 1.0:
        scale = math.sqrt(1.0 + math.log(factor) / math.log(original))
    return read.number("rope.attention_factor", scale)
