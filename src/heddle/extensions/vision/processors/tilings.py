"""The grid of square tiles that is closest to a picture's shape.

Source: InternVL's dynamic preprocessing (`get_optimal_tiled_canvas` in transformers), which LFM2-VL
shares.
"""

from __future__ import annotations


def closest_grid(height: int, width: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Tiles from top to bottom and from left to right.

    Of grids that are equally close, the one with more tiles wins while its area is less than twice
    the picture's.
    """
    best, best_difference = (1, 1), float("inf")
    for across, down in _grids(least, most):
        difference = abs(width / height - across / down)
        is_filled = height * width > 0.5 * side * side * across * down
        if difference < best_difference or (difference == best_difference and is_filled):
            best, best_difference = (down, across), difference
    return best


def _grids(least: int, most: int) -> list[tuple[int, int]]:
    """Grids with a number of tiles in this range, those with fewer tiles first."""
    grids = [
        (across, down)
        for across in range(1, most + 1)
        for down in range(1, most // across + 1)
        if across * down >= least
    ]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])
