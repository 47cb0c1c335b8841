"""Areas of the map: polygons in whole units of a 65,535th of its side."""

import re

import numpy as np
from numpy.typing import NDArray

from lookalike.server.errors import invalid

UNITS = 65_535  # along a side of the map
MOST_CORNERS = 200
_CORNERS = re.compile(r"(-?[0-9]{1,6},-?[0-9]{1,6})(;-?[0-9]{1,6},-?[0-9]{1,6})*")

Corners = list[tuple[int, int]]


def read_corners(text: str) -> Corners:
    """Read the corners of a polygon from ``x,y;x,y;...``.

    Raises:
        ApiError: 422 if it is malformed or has fewer than 3 or too many corners.
    """
    longest = MOST_CORNERS * len("-99999,-99999;")
    corners: Corners = []
    if len(text) <= longest and _CORNERS.fullmatch(text):
        for corner in text.split(";"):
            x, _, y = corner.partition(",")
            corners.append((int(x), int(y)))
    if not 3 <= len(corners) <= MOST_CORNERS:
        raise invalid(f"area must be 3 to {MOST_CORNERS} corners x,y;x,y;... in units of the map")
    return corners


def inside(points: NDArray[np.int64], corners: Corners) -> NDArray[np.bool_]:
    """Tell which points lie inside a polygon, by the even-odd rule; ``map_lasso.js`` computes the same.

    Args:
        points: Points (n, 2).
        corners: The polygon; the last corner is joined with the first.

    Returns:
        (n,).
    """
    result = np.zeros(len(points), bool)
    x, y = points[:, 0], points[:, 1]
    previous_x, previous_y = corners[-1]
    for corner_x, corner_y in corners:
        crosses = (corner_y > y) != (previous_y > y)
        if corner_y != previous_y:
            at = (previous_x - corner_x) * (y - corner_y) / (previous_y - corner_y) + corner_x
            result ^= crosses & (x < at)
        previous_x, previous_y = corner_x, corner_y
    return result
