"""Skewed means: means that a real parameter, the knob, moves towards the largest or the smallest value.

    K-skewed   the mean of the K largest (K > 0) or of the |K| smallest (K < 0)
    log-exp    1/knob log(mean exp(knob s))            knob 0: the arithmetic mean
    power      (mean s^knob)^(1/knob),  s >= 0         knob -1, 0, 1, 2: harmonic, geometric, arithmetic, quadratic

The last two increase with the knob, from the minimum at -inf to the maximum at +inf; both ends are allowed. A power
mean is the log-exp mean of logarithms. The mean of the means of parts, weighted by their sizes, is the mean of all
values. So means over millions of pairs can be computed tile by tile.

Values are finite. Computed in fp32, or in fp64 for fp64. Reference: definitions (5)-(7) of "skewed mean functions".
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isinf, isnan
from typing import Any

import torch
from torch import Tensor

from lookalike._util.tensor_checks import require

KINDS = ("power", "log-exp", "k")
CLOSEST = 1e-6  # smaller distances are raised to this; such points do not push each other
CPU_TILE = 256  # points per side of a tile: tensors of half a megabyte, which the heap reuses
OTHER_TILE = 2048  # fewer and larger launches on an accelerator
NEGLIGIBLE = 1e-30  # smaller knobs are 0: their products with values would underflow
LOGARITHM_OF_ZERO = -1e20  # its exponential is 0, and so is that of its mean with other values

Measure = Callable[[Tensor, Tensor], Tensor]  # rows (r, D), columns (c, D) -> one number per pair (r, c)
Summary = tuple[Tensor, Tensor]  # values and weights, see SkewedMean.summary
Tile = tuple[slice, slice]  # rows and columns


@dataclass(frozen=True)
class SkewedMean:
    """A skewed mean by name.

    Args:
        kind: "power", "log-exp" or "k".
        knob: The parameter; for "k" the number K.

    Raises:
        ValueError: If the kind is unknown or the knob does not fit it.
        TypeError: If the knob is not a number.

    Examples:
        >>> SkewedMean("power", -1)(torch.tensor([1.0, 0.5]))
        tensor(0.6667)
    """

    kind: str = "power"
    knob: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        _check_knob(self.knob)
        if self.kind == "k" and (self.knob == 0 or isinf(self.knob) or self.knob != int(self.knob)):
            raise ValueError(f"the knob of a K-skewed mean must be a whole number other than 0, got {self.knob}")

    def __call__(self, values: Tensor, dim: int = -1, *, weights: Tensor | None = None) -> Tensor:
        """Compute the mean along ``dim``; see the function of its kind for the arguments."""
        if self.kind == "power":
            return power_mean(values, self.knob, dim, weights=weights)
        if self.kind == "log-exp":
            return log_exp_mean(values, self.knob, dim, weights=weights)
        mask = None
        if weights is not None:
            mask = weights > 0
        return k_skewed_mean(values, int(self.knob), dim, mask=mask)

    def summary(self, values: Tensor, mask: Tensor) -> Summary:
        """Reduce one part of the values to what the mean over all parts needs.

        Args:
            values: Values of this part (..., N).
            mask: (..., N) bool, True where a value counts.

        Returns:
            Values and weights (..., m).
        """
        if self.kind != "k":
            return self(values, weights=mask).unsqueeze(-1), mask.sum(-1, keepdim=True)
        top = _top(values, int(self.knob), -1, mask)  # the K largest of all are among the K largest of the parts
        return values.gather(-1, top), mask.gather(-1, top)


def k_skewed_mean(values: Tensor, k: int, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    """Compute the mean of the largest or of the smallest values.

    Args:
        values: Values of any shape.
        k: Number of largest values; negative for the smallest.
        dim: The dimension to reduce.
        mask: Bool, True where a value counts. If fewer than ``|k|`` count, their mean is taken; 0 if none does.

    Returns:
        The means, without ``dim``.

    Raises:
        ValueError: If there are fewer than ``|k|`` values, or ``k`` is 0.
        TypeError: If ``k`` is no whole number or the values are not of floating point.

    Examples:
        >>> k_skewed_mean(torch.tensor([1.0, 4.0, 2.0]), 2), k_skewed_mean(torch.tensor([1.0, 4.0, 2.0]), -1)
        (tensor(3.), tensor(1.))
    """
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be a whole number, got {k!r}")
    values, mask = _prepare(values, mask, dim)
    count = values.shape[dim]
    if k == 0 or (mask is None and abs(k) > count):
        raise ValueError(f"k must lie in -{count}..-1 or 1..{count} for {count} values, got {k}")
    top = _top(values, k, dim, mask)
    chosen = values.gather(dim, top)
    if mask is None:
        return chosen.mean(dim)
    counts = mask.gather(dim, top)
    return torch.where(counts, chosen, 0).sum(dim) / counts.sum(dim).clamp(min=1)


def log_exp_mean(values: Tensor, knob: float, dim: int = -1, *, weights: Tensor | None = None) -> Tensor:
    """Compute 1/knob log(mean exp(knob values)).

    The result and its gradient, softmax(knob values), are accurate to rounding for every knob, small or large.

    Args:
        values: Values of any shape.
        knob: 0 gives the arithmetic mean, -inf and inf the extremes.
        dim: The dimension to reduce.
        weights: Not negative, or bool, of a shape that broadcasts to the values. 0 leaves a value out, even NaN.

    Returns:
        The means, without ``dim``; 0 where no value counts.

    Raises:
        ValueError: If there are no values or the knob is NaN.
        TypeError: If the values are not of floating point or the knob is not a number.

    Examples:
        >>> log_exp_mean(torch.tensor([0.0, 1.0]), 1e-9), log_exp_mean(torch.tensor([0.0, 1.0]), 1e9)
        (tensor(0.5000), tensor(1.))
    """
    _check_knob(knob)
    values, weights = _prepare(values, weights, dim)
    if isinf(knob):
        return _extreme(values, weights, dim, knob > 0).squeeze(dim)
    if abs(knob) >= NEGLIGIBLE:
        mean: Tensor = _LogExpMean.apply(values, weights, knob, dim)
        return mean
    if weights is None:
        return values.mean(dim)
    return torch.where(weights > 0, values * weights, 0).sum(dim) / _total(values, weights, dim)


def power_mean(values: Tensor, knob: float, dim: int = -1, *, weights: Tensor | None = None) -> Tensor:
    """Compute (mean values^knob)^(1/knob).

    If a value is 0 and the knob at most 0, the mean is 0. Values of 0 have the gradient 0, unless the knob is 1 or
    infinite; the true gradient may be infinite.

    Args:
        values: Values of any shape, not negative.
        knob: 0 gives the geometric mean, -inf and inf the extremes.
        dim: The dimension to reduce.
        weights: Not negative, or bool, of a shape that broadcasts to the values. 0 leaves a value out.

    Returns:
        The means, without ``dim``; 0 where no value counts.

    Raises:
        ValueError: If a value is negative, there are no values, or the knob is NaN.
        TypeError: If the values are not of floating point or the knob is not a number.

    Examples:
        >>> power_mean(torch.tensor([1.0, 4.0]), 0), power_mean(torch.tensor([0.0, 4.0]), -1)
        (tensor(2.), tensor(0.))
    """
    _check_knob(knob)
    values, weights = _prepare(values, weights, dim)
    negative = values < 0
    if weights is not None:
        negative = negative & (weights > 0)
    require(~negative.any(), "a power mean is of values that are at least 0, got a negative one")
    if knob == 1:
        return log_exp_mean(values, 0, dim, weights=weights)
    if isinf(knob):
        return log_exp_mean(values, knob, dim, weights=weights)
    logarithms = torch.where(values > 0, values, 1).log().masked_fill(values <= 0, LOGARITHM_OF_ZERO)
    mean = log_exp_mean(logarithms, knob, dim, weights=weights).exp()
    if weights is None:
        return mean
    return mean.masked_fill((weights == 0).all(dim), 0)


class _LogExpMean(torch.autograd.Function):
    """Saves the values alone for the backward pass; autograd would save five tensors of their size."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor | None, knob: float, dim: int) -> Tensor:
        extreme = _extreme(values, weights, dim, knob > 0)
        ctx.save_for_backward(values, extreme, weights)
        ctx.knob, ctx.dim = knob, dim
        exponents = _exponents(values, weights, extreme, knob)  # at most 0
        total: Tensor | int = values.shape[dim]
        if weights is not None:
            total = _total(values, weights, dim, keepdim=True)
        # log(1 + mean expm1) keeps the digits of a small knob, log(mean exp) those of a large one and many values.
        mean_expm1 = _weigh(exponents.expm1(), weights).sum(dim, keepdim=True) / total
        mean_exp = _weigh(exponents.exp(), weights).sum(dim, keepdim=True) / total
        logarithm = torch.where(mean_expm1 > -0.5, mean_expm1.log1p(), mean_exp.log())
        return (extreme + logarithm / knob).squeeze(dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        values, extreme, weights = ctx.saved_tensors
        shares = _weigh(_exponents(values, weights, extreme, ctx.knob).exp(), weights)
        total = shares.sum(ctx.dim, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
        return gradient.unsqueeze(ctx.dim) * (shares / total), None, None, None


def _exponents(values: Tensor, weights: Tensor | None, extreme: Tensor, knob: float) -> Tensor:
    exponents = knob * (values - extreme)
    if weights is None:
        return exponents
    return exponents.masked_fill(weights == 0, 0)


def _weigh(terms: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return terms
    return terms * weights


def _extreme(values: Tensor, weights: Tensor | None, dim: int, largest: bool) -> Tensor:
    """The largest or smallest value that counts, with ``dim`` kept; 0 where none does."""
    if weights is not None:
        left_out = weights == 0
        values = values.masked_fill(left_out, -torch.inf if largest else torch.inf)
    if largest:
        extreme = values.amax(dim, keepdim=True)
    else:
        extreme = values.amin(dim, keepdim=True)
    if weights is None:
        return extreme
    return extreme.masked_fill(left_out.all(dim, keepdim=True), 0)


def _total(values: Tensor, weights: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return weights.sum(dim, keepdim=keepdim).to(values.dtype).clamp(min=torch.finfo(values.dtype).tiny)


def _top(values: Tensor, k: int, dim: int, mask: Tensor | None) -> Tensor:
    """Indices of the ``k`` largest, or ``-k`` smallest, along ``dim``; of all if there are fewer."""
    values = values.detach()
    if mask is not None:
        values = values.masked_fill(~mask, -torch.inf if k > 0 else torch.inf)
    return values.topk(min(abs(k), values.shape[dim]), dim, largest=k > 0).indices


def _prepare(values: Tensor, weights: Tensor | None, dim: int) -> tuple[Tensor, Tensor | None]:
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"values must be a floating point tensor, got {kind}")
    if values.dim() == 0 or values.shape[dim] == 0:
        raise ValueError(f"a mean needs at least one value along dimension {dim}, got the shape {tuple(values.shape)}")
    values = _at_least_fp32(values)
    if weights is not None:
        weights = weights.expand_as(values)
    return values, weights


def _at_least_fp32(values: Tensor) -> Tensor:
    if values.dtype == torch.float64:
        return values
    return values.float()


def _check_knob(knob: float) -> None:
    if isinstance(knob, bool) or not isinstance(knob, (int, float)):
        raise TypeError(f"the knob must be a number, got {knob!r}")
    if isnan(knob):
        raise ValueError("the knob must be a number or -inf or inf, got nan")


# ---- means over pairs of points


def similarities(rows: Tensor, columns: Tensor) -> Tensor:
    """Compute the dot products (r, c) of rows (r, D) and columns (c, D)."""
    return rows @ columns.T


def distances(rows: Tensor, columns: Tensor, *, squared: bool = False) -> Tensor:
    """Compute Euclidean distances.

    The product is computed in fp64 where the device has it: in fp32 a distance of 0 could become 1e-3.

    Args:
        rows: Points (r, D).
        columns: Points (c, D).
        squared: Return squared distances.

    Returns:
        Distances (r, c), at least CLOSEST; the gradient is 0 where they are raised to it.
    """
    dtype = rows.dtype if rows.device.type == "mps" else torch.float64
    wide_rows, wide_columns = rows.to(dtype), columns.to(dtype)
    squared_norms = wide_rows.square().sum(1, keepdim=True) + wide_columns.square().sum(1)
    squares = torch.addmm(squared_norms, wide_rows, wide_columns.T, alpha=-2).clamp(min=CLOSEST**2).to(rows.dtype)
    if squared:
        return squares
    return squares.sqrt()


def mean_over_pairs(
    points: Tensor, measure: Measure, mean: SkewedMean, *, present: Tensor | None = None, at_once: int | None = None
) -> Tensor:
    """Compute the mean of a symmetric measure over all pairs of different points.

    The pairs are processed in tiles of ``at_once``^2, which the backward pass computes again. So memory does not grow
    with n^2. A K-skewed mean also keeps K values of every tile.

    Args:
        points: Points (n, D).
        measure: ``similarities``, ``distances`` or alike.
        mean: The mean.
        present: (n,) bool, True for the points that take part.
        at_once: Points per side of a tile. None chooses by the device.

    Returns:
        A scalar; 0 if there are no pairs.
    """
    number, present = _numbers_and_presence(points, present)

    def summarise(row_points: Tensor, column_points: Tensor, rows: slice, columns: slice) -> Summary:
        mask = (number[rows].unsqueeze(1) < number[columns]) & present[rows].unsqueeze(1) & present[columns]
        return mean.summary(measure(row_points, column_points).flatten(), mask.flatten())

    parts = _parts(points, at_once)
    tiles = []
    for i, rows in enumerate(parts):
        tiles += [(rows, columns) for columns in parts[i:]]  # each pair once
    values, weights = _summaries(points, tiles, summarise)
    return mean(torch.cat(values), weights=torch.cat(weights))


def mean_over_others(
    points: Tensor, measure: Measure, mean: SkewedMean, *, present: Tensor | None = None, at_once: int | None = None
) -> Tensor:
    """Compute for each point the mean of its measures with all others.

    Args:
        points: Points (n, D).
        measure: ``similarities``, ``distances`` or alike.
        mean: The mean.
        present: (n,) bool, True for the points that take part as others.
        at_once: As for ``mean_over_pairs``.

    Returns:
        Means (n,).
    """
    number, present = _numbers_and_presence(points, present)

    def summarise(row_points: Tensor, column_points: Tensor, rows: slice, columns: slice) -> Summary:
        mask = (number[rows].unsqueeze(1) != number[columns]) & present[columns]
        return mean.summary(measure(row_points, column_points), mask)

    parts = _parts(points, at_once)
    tiles = []
    for rows in parts:
        tiles += [(rows, columns) for columns in parts]
    values, weights = _summaries(points, tiles, summarise)
    means = []
    for start in range(0, len(values), len(parts)):
        row = slice(start, start + len(parts))  # the tiles of one part with all parts
        means.append(mean(torch.cat(values[row], -1), weights=torch.cat(weights[row], -1)))
    return torch.cat(means)


def _numbers_and_presence(points: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
    number = torch.arange(len(points), device=points.device)
    if present is None:
        present = torch.ones_like(number, dtype=torch.bool)
    return number, present


def _parts(points: Tensor, at_once: int | None) -> list[slice]:
    if at_once is None:
        at_once = CPU_TILE if points.device.type == "cpu" else OTHER_TILE
    return [slice(start, start + at_once) for start in range(0, len(points), at_once)]


def _summaries(
    points: Tensor, tiles: list[Tile], summarise: Callable[..., Summary]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Values and weights of all tiles."""
    points = _at_least_fp32(points)
    with _without_autocast(points.device):
        if len(tiles) == 1:
            value, weight = summarise(points, points, *tiles[0])
            return (value,), (weight,)
        summaries = _Tiles.apply(points, tiles, summarise)
        return summaries[: len(tiles)], summaries[len(tiles) :]


class _Tiles(torch.autograd.Function):
    """Saves the points alone and computes every tile again in the backward pass.

    torch.utils.checkpoint would scatter gradients between the tiles in memory, and it loads 900 modules when it is
    first called: 1.7 s and 150 MB.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, tiles: list[Tile], summarise: Callable[..., Summary]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(points)
        ctx.tiles, ctx.summarise = tiles, summarise
        values, weights = [], []
        for rows, columns in tiles:
            tile_values, tile_weights = summarise(points[rows], points[columns], rows, columns)
            values.append(tile_values)
            weights.append(tile_weights)
        ctx.mark_non_differentiable(*weights)
        return (*values, *weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (points,) = ctx.saved_tensors
        create_graph = torch.is_grad_enabled()  # for second derivatives
        total = torch.zeros_like(points)
        for (rows, columns), gradient in zip(ctx.tiles, gradients, strict=False):  # those of the weights come after
            with torch.enable_grad(), _without_autocast(points.device):
                inputs = points[rows], points[columns]
                values, _ = ctx.summarise(*inputs, rows, columns)
                row_gradient, column_gradient = torch.autograd.grad(values, inputs, gradient, create_graph=create_graph)
            total[rows] += row_gradient
            total[columns] += column_gradient
        return total, None, None


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
