"""A start of the projection from data: principal directions, at a scale that lets the pooling see.

The rows of the projection are the leading eigenvectors of

    uncentred:  1/M sum x x^T              centred:  1/M sum (x - mean)(x - mean)^T

where x are averages of pictures if given, else local features. They are then multiplied by one number, so that the
median norm of the projected local features is what was asked for. The scale matters to poolings with prototypes in
the unit ball: below norm 1 nothing is clipped, all distances shrink together and every place looks alike; 2 is best.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lookalike._util.checks import check_count, check_range
from lookalike._util.tensor_checks import promise


class ProjectionStart(NamedTuple):
    weight: Tensor  # (D, C), the projection
    scale: float  # by which the orthonormal directions were multiplied
    median_norm: float  # of the projected local features, after that
    kept: float  # share of the sum of the eigenvalues that the D directions hold


def principal_projection(
    local: Tensor,
    averages: Tensor | None,
    dim: int,
    *,
    scale_to_median_norm: float | None = 2.0,
    centred: bool = False,
) -> ProjectionStart:
    """A projection (D, C) from local features (K, C) and, if given, averages of pictures (M, C).

    Directions of local features (``averages=None``) are the better start for a pooling that selects among them.
    ``centred`` leaves the mean out of the directions, as in textbook PCA; but a projection without bias passes on
    whatever of the mean falls into its span, so centring hardly matters. Measured without training (EfficientNet-lite0
    on CUB's unseen classes, 128 px enlarged to 224, 1280-D -> 128-D, MAP@R in per cent, uncentred / centred):

        average pooling  11.25 / 11.25 by averages, 11.41 / 11.40 by local features, 11.47 without projection
        GSP at norm 2    11.22 / 11.32 by averages, 11.78 / 11.73 by local features (64 prototypes, sharpness 10)

    ``scale_to_median_norm=None`` leaves the directions orthonormal. Signs are fixed, so equal data give equal weights.
    """
    check_count("dim", dim)
    if scale_to_median_norm is not None:
        check_range("scale_to_median_norm", scale_to_median_norm, 0, None)
    for name, features in (("local", local), ("averages", averages)):
        if features is not None and (features.dim() != 2 or not len(features)):
            raise ValueError(f"{name} features must have the shape (at least one, C), got {tuple(features.shape)}")
        if features is not None:
            promise(features.isfinite().all(), f"{name} features must be finite, got NaN or infinity")
    if averages is not None and averages.shape[1] != local.shape[1]:
        raise ValueError(f"averages must have {local.shape[1]} channels as the local features, got {averages.shape[1]}")
    if dim > local.shape[1]:
        raise ValueError(f"there are only {local.shape[1]} principal directions, {dim} were asked for")

    points = (local if averages is None else averages).double()
    points = points - points.mean(0) if centred else points
    values, vectors = torch.linalg.eigh(points.T @ points / len(points))
    directions = vectors[:, -dim:].flip(1).T  # eigh counts upwards
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)
    weight = directions.to(local.dtype if local.dtype == torch.float64 else torch.float32)

    norm, scale = median_norm(local.to(weight) @ weight.T), 1.0
    if scale_to_median_norm is not None:
        if norm == 0:
            raise ValueError("local features must not be zero for the most part: there is no scale to set")
        scale = scale_to_median_norm / norm
    return ProjectionStart(weight * scale, scale, norm * scale, float(values[-dim:].sum() / values.sum()))


def median_norm(features: Tensor) -> float:
    """The median norm of features (..., D).

    >>> median_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]]))
    2.0
    """
    return float(torch.linalg.vector_norm(features, dim=-1).median())
