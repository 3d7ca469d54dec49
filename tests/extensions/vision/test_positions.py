"""Learned vectors of positions on other grids, as torch computes them."""

from __future__ import annotations

import numpy as np
import pytest

from heddle.extensions.vision.positions import bucketed, cubic, fitted, smoothed, to_corners

TABLE = (np.arange(25) ** 2 % 17).astype(np.float32)[:, None]
"""A square of 5 by 5 vectors of one element."""


# By torch.nn.functional.interpolate(TABLE, size=(3, 7)): bilinear with antialias, bicubic, and
# bilinear with align_corners.
@pytest.mark.parametrize(
    ("along", "expected"),
    [
        (
            smoothed,
            [
                [3.42857, 2.28571, 3.5102, 8.71429, 10.14286, 12.42857, 14.71429],
                [11.0, 5.73016, 3.49206, 7.77778, 10.79365, 10.61905, 8.77778],
                [6.85714, 8.40816, 8.14286, 4.57143, 2.42857, 5.30612, 10.28571],
            ],
        ),
        (
            cubic,
            [
                [2.19377, 0.97079, 2.85253, 7.85185, 9.22036, 12.50464, 15.68595],
                [16.02333, 6.82798, 1.81196, 8.0, 14.91691, 13.90087, 8.44898],
                [6.46787, 10.02105, 10.25515, 5.03703, 0.54778, 4.78187, 12.0785],
            ],
        ),
        (
            to_corners,
            [
                [0.0, 0.66667, 2.0, 4.0, 7.33333, 11.33333, 16.0],
                [15.0, 6.33333, 4.0, 8.0, 13.33333, 13.66667, 9.0],
                [9.0, 13.66667, 13.33333, 8.0, 4.0, 6.33334, 15.0],
            ],
        ),
    ],
)
def test_vectors_of_a_grid_of_another_size(along, expected) -> None:
    found = fitted(TABLE, 5, along)(3, 7)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.reshape(3, 7), expected, atol=3e-5)


def test_buckets_repeat_and_skip_vectors() -> None:
    square = TABLE.reshape(5, 5)
    found = fitted(TABLE, 5, bucketed)(3, 7).reshape(3, 7)
    np.testing.assert_array_equal(found, square[[0, 1, 3]][:, [0, 0, 1, 2, 2, 3, 4]])


@pytest.mark.parametrize("along", [bucketed, cubic, smoothed, to_corners])
def test_the_grid_of_the_files_has_the_vectors_of_the_files(along) -> None:
    np.testing.assert_allclose(fitted(TABLE, 5, along)(5, 5), TABLE, atol=1e-6)
