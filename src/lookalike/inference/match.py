"""Which places of two pictures make them similar.

If a pooling is a weighted sum, the vector of a picture is u = sum_i u_i with u_i = p_i f_i: the weight of place i times
its local feature, projected. The cosine of two pictures is then a sum over all pairs of places, without a remainder:

    cos(u, v) = sum_ij M_ij,    M_ij = <u_i, v_j> / (|u| |v|)

A region is a group of places in each of the two pictures that match more than places with their totals would by
chance: E = M - r c^T / sum(M), with r and c the sums of the rows and columns. The leading singular vectors of the
positive part of E give one group in each picture. It is taken out and the next one follows. The share of a region is
the sum of M over its pairs, divided by the cosine.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from lookalike.inference.heatmap import Box

WEIGHTED_SUMS = ("average", "gsp", "attention", "delf", "cbam", "crow", "smk")
MOST_REGIONS = 4
SMALLEST_SHARE = 0.02  # of the cosine; smaller regions are left out
MEMBER = 0.35  # a place belongs to a region from this fraction of its strongest place on
COLOURS = ("#e69f00", "#56b4e9", "#cc79a7", "#009e73")  # of the regions; distinct for colour-blind people


def can_match(pooling: dict[str, Any]) -> bool:
    """Whether a pooling is a weighted sum, from the settings of a model; ``Pooling.is_weighted_sum`` without torch."""
    if pooling["name"] == "simpool":
        return pooling["settings"].get("power", 2.0) is None
    return pooling["name"] in WEIGHTED_SUMS


class Places(NamedTuple):
    """The contributions of one picture's places to its vector.

    Attributes:
        contributions: (N, D); their sum has the direction of the vector.
        grid: (rows, columns) with rows * columns = N; cells count row by row.
        box: The area of the picture that the grid covers.
    """

    contributions: NDArray[np.float64]
    grid: tuple[int, int]
    box: Box


class MatchRegion(NamedTuple):
    """Places of two pictures that match each other.

    Attributes:
        share: The part of the cosine that comes from pairs inside the region.
        cells_a: Cells of the first grid, counted row by row.
        cells_b: Cells of the second grid.
    """

    share: float
    cells_a: list[int]
    cells_b: list[int]


class Match(NamedTuple):
    """Why two pictures are similar.

    Attributes:
        cosine: Of the two vectors.
        matrix: (N_a, N_b), what each pair of places adds to the cosine. Entries may be negative; their sum is the
            cosine.
        grid_a: (rows, columns) of the cells of the first picture.
        grid_b: Of the second one.
        box_a: The area that the first grid covers, in pixels.
        box_b: That of the second one.
        regions: The strongest ones, largest share first. They do not overlap.
        inside_share: The part of the cosine from pairs that lie off the border in both pictures. The border is the
            outermost ring of cells; what is photographed rarely lies there.
        inside_area: The part of all pairs that lie off the border, for comparison.
    """

    cosine: float
    matrix: NDArray[np.float64]
    grid_a: tuple[int, int]
    grid_b: tuple[int, int]
    box_a: Box
    box_b: Box
    regions: list[MatchRegion]
    inside_share: float
    inside_area: float


def match_places(a: Places, b: Places) -> Match:
    """Split the cosine of two pictures into contributions of pairs of places.

    Args:
        a: Places of one picture.
        b: Places of another one.

    Returns:
        The matrix and its regions.

    Raises:
        ValueError: If a vector is zero or not finite.
    """
    norms = np.linalg.norm(a.contributions.sum(0)) * np.linalg.norm(b.contributions.sum(0))
    if not np.isfinite(norms) or norms == 0:
        raise ValueError("the vector of a picture is zero or not finite: there is no cosine to explain")
    matrix = a.contributions @ b.contributions.T / norms
    cosine = float(matrix.sum())
    inside_a, inside_b = _inside(a.grid), _inside(b.grid)
    inside = float(matrix[np.ix_(inside_a, inside_b)].sum())
    return Match(
        cosine=cosine,
        matrix=matrix,
        grid_a=a.grid,
        grid_b=b.grid,
        box_a=a.box,
        box_b=b.box,
        regions=find_regions(matrix),
        inside_share=inside / cosine if cosine > 0 else 0.0,
        inside_area=float(inside_a.mean() * inside_b.mean()),
    )


def find_regions(matrix: NDArray[np.float64], most: int = MOST_REGIONS) -> list[MatchRegion]:
    """Find groups of places that match each other.

    Args:
        matrix: (N_a, N_b) of a ``Match``.
        most: Largest number of regions.

    Returns:
        Disjoint regions, largest share first; none if the cosine is not positive.

    Examples:
        >>> [tuple(region) for region in find_regions(np.array([[0.5, 0.0], [0.0, 0.25]]))]
        [(0.6666666666666666, [0], [0]), (0.3333333333333333, [1], [1])]
    """
    total = matrix.sum()
    if total <= 0:
        return []
    expected = np.outer(matrix.sum(1), matrix.sum(0)) / total
    excess = np.clip(matrix - expected, 0, None)
    excess[matrix <= 0] = 0
    regions = []
    for _ in range(most):
        left, strengths, right = np.linalg.svd(excess)
        if strengths[0] <= 0:
            break
        cells_a, cells_b = _members(left[:, 0]), _members(right[0])
        excess[cells_a] = 0
        excess[:, cells_b] = 0
        share = float(matrix[np.ix_(cells_a, cells_b)].sum() / total)
        if share >= SMALLEST_SHARE:
            regions.append(MatchRegion(share, cells_a.tolist(), cells_b.tolist()))
    return sorted(regions, key=lambda region: -region.share)


def adds_up(inside_share: float, region_shares: list[float]) -> bool:
    """Whether the shares of a match can be told in percent.

    Where pairs of places with negative products take much of a small cosine away, shares of what is left exceed 1.
    Then only the amounts, share times cosine, mean something.
    """
    return 0 <= inside_share <= 1 and sum(region_shares) <= 1


def match_report(match: Match, size_a: tuple[int, int], size_b: tuple[int, int]) -> dict[str, Any]:
    """Convert a match to plain values, for JSON.

    Args:
        match: The result of ``TrainedModel.match``.
        size_a: Width and height of the first picture.
        size_b: Those of the second one.

    Returns:
        The attributes of ``Match``. Grids have their box as fractions of the picture; the matrix has seven digits.
    """
    regions = [region._asdict() for region in match.regions]
    return {
        "cosine": match.cosine,
        "inside_share": match.inside_share,
        "inside_area": match.inside_area,
        "regions": regions,
        "a": _grid_report(match.grid_a, match.box_a, size_a),
        "b": _grid_report(match.grid_b, match.box_b, size_b),
        "matrix": match.matrix.round(7).tolist(),
    }


def _grid_report(grid: tuple[int, int], box: Box, size: tuple[int, int]) -> dict[str, Any]:
    width, height = size
    fractions = [box.left / width, box.top / height, box.width / width, box.height / height]
    return {"rows": grid[0], "columns": grid[1], "box": fractions}


def draw_match(match: Match, a: Image.Image, b: Image.Image, side: int = 320) -> Image.Image:
    """Draw two pictures side by side, with matching regions in the same colour.

    Args:
        match: The result of ``TrainedModel.match``.
        a: The first picture, upright.
        b: The second one.
        side: Height of the drawing in pixels.

    Returns:
        One picture.
    """
    panels = []
    for image, box, grid, name in (
        (a, match.box_a, match.grid_a, "cells_a"),
        (b, match.box_b, match.grid_b, "cells_b"),
    ):
        cells = [getattr(region, name) for region in match.regions]
        panels.append(_draw_regions(image, box, grid, cells, side))
    gap = side // 20
    drawing = Image.new("RGB", (panels[0].width + gap + panels[1].width, side), "white")
    drawing.paste(panels[0], (0, 0))
    drawing.paste(panels[1], (panels[0].width + gap, 0))
    return drawing


def _draw_regions(
    image: Image.Image, box: Box, grid: tuple[int, int], regions: list[list[int]], side: int
) -> Image.Image:
    scale = side / image.height
    panel = image.convert("RGB").resize((max(1, round(image.width * scale)), side), Image.Resampling.LANCZOS)
    overlay = Image.new("RGBA", panel.size, (16, 16, 42, 120))
    draw = ImageDraw.Draw(overlay)
    rows, columns = grid
    for cells, colour in zip(regions, COLOURS, strict=False):
        for cell in cells:
            left = (box.left + box.width * (cell % columns) / columns) * scale
            top = (box.top + box.height * (cell // columns) / rows) * scale
            right, bottom = left + box.width / columns * scale, top + box.height / rows * scale
            draw.rectangle((left, top, right, bottom), fill=(*_rgb(colour), 70), outline=(*_rgb(colour), 255), width=2)
    return Image.alpha_composite(panel.convert("RGBA"), overlay).convert("RGB")


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _members(vector: NDArray[np.float64]) -> NDArray[np.int64]:
    """The entries of a singular vector that are at least MEMBER of the largest in size."""
    sizes = np.abs(vector)
    return np.flatnonzero(sizes >= MEMBER * sizes.max())


def _inside(grid: tuple[int, int]) -> NDArray[np.bool_]:
    """(rows * columns,), False for the outermost ring of cells; a side of one or two cells has no border."""
    inside = np.ones(grid, bool)
    if grid[0] > 2:
        inside[[0, -1]] = False
    if grid[1] > 2:
        inside[:, [0, -1]] = False
    return inside.reshape(-1)
