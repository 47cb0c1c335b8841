"""Means that lean towards the largest or the smallest of some numbers, by one real knob; and over pairs of points.

    K-skewed   the mean of the K largest (K > 0) or of the |K| smallest (K < 0)
    log-exp    1/knob log(mean exp(knob s))            knob 0: the arithmetic mean
    power      (mean s^knob)^(1/knob),  s >= 0         knob -1, 0, 1, 2: harmonic, geometric, arithmetic, quadratic

The last two rise with the knob, from the minimum at -inf to the maximum at +inf; both ends are knobs like any other. A
power mean is the log-exp mean of logarithms. Both are means of means: those of parts, weighted by their sizes, have
the mean of the whole, so that a million pairs need not be in memory at once.

Numbers are finite. Computed in fp32, or fp64 for fp64. Reference: the definitions (5)-(7) of "skewed mean functions".
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isinf, isnan
from typing import Any

import torch
from torch import Tensor

from lookalike._util.tensor_checks import promise

KINDS = ("power", "log-exp", "k")
CLOSEST = 1e-6  # no distance is taken for smaller; points closer than that do not push each other
CPU_TILE = 256  # points on a side: tensors of half a megabyte, which the heap finds room for again and again
OTHER_TILE = 2048  # fewer and larger launches on an accelerator
NEGLIGIBLE = 1e-30  # knobs nearer to 0 than that are 0: their products with numbers would underflow
LOGARITHM_OF_ZERO = -1e20  # whose exponential is 0, and whose mean with others as well


@dataclass(frozen=True)
class SkewedMean:
    """One of the three by name.

    >>> SkewedMean("power", -1)(torch.tensor([1.0, 0.5]))
    tensor(0.6667)
    """

    kind: str = "power"
    knob: float = 1.0  # for "k" the number K

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        _check_knob(self.knob)
        if self.kind == "k" and (self.knob == 0 or isinf(self.knob) or self.knob != int(self.knob)):
            raise ValueError(f"the knob of a K-skewed mean must be a whole number other than 0, got {self.knob}")

    def __call__(self, values: Tensor, dim: int = -1, *, weights: Tensor | None = None) -> Tensor:
        if self.kind == "k":
            return k_skewed_mean(values, int(self.knob), dim, mask=None if weights is None else weights > 0)
        mean = power_mean if self.kind == "power" else log_exp_mean
        return mean(values, self.knob, dim, weights=weights)

    def summary(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What the mean of this part and others takes of this part's values (..., N): values and weights (..., m)."""
        if self.kind != "k":
            return self(values, weights=mask).unsqueeze(-1), mask.sum(-1, keepdim=True)
        top = _top(values, int(self.knob), -1, mask)  # the K largest of all are among the K largest of every part
        return values.gather(-1, top), mask.gather(-1, top)


def k_skewed_mean(values: Tensor, k: int, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    """Mean of the ``k`` largest values along ``dim``, or, if negative, of the ``-k`` smallest.

    mask: True where a value counts. Where fewer count than asked for, their mean; 0 where none does.

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
    counted = mask.gather(dim, top)
    return torch.where(counted, chosen, 0).sum(dim) / counted.sum(dim).clamp(min=1)


def log_exp_mean(values: Tensor, knob: float, dim: int = -1, *, weights: Tensor | None = None) -> Tensor:
    """1/knob log(mean exp(knob values)) along ``dim``; the arithmetic mean for 0, the extremes for -inf and inf.

    weights: not negative, or bool, of a shape that fits the values; 0 leaves a value out, whatever it is. The mean of
    nothing is 0. Accurate to rounding for every knob, small or large, and so is the gradient, softmax(knob values).

    >>> log_exp_mean(torch.tensor([0.0, 1.0]), 1e-9), log_exp_mean(torch.tensor([0.0, 1.0]), 1e9)
    (tensor(0.5000), tensor(1.))
    """
    _check_knob(knob)
    values, weights = _prepare(values, weights, dim)
    if abs(knob) < NEGLIGIBLE:
        if weights is None:
            return values.mean(dim)
        return torch.where(weights > 0, values * weights, 0).sum(dim) / _total(values, weights, dim)
    if isinf(knob):
        return _extreme(values, weights, dim, knob > 0).squeeze(dim)
    mean: Tensor = _LogExpMean.apply(values, weights, knob, dim)
    return mean


def power_mean(values: Tensor, knob: float, dim: int = -1, *, weights: Tensor | None = None) -> Tensor:
    """(mean values^knob)^(1/knob) along ``dim``; the geometric mean for 0, the extremes for -inf and inf.

    Values and weights are not negative. Where one of the values is 0 and the knob at most 0, so is the mean. Values
    that are 0 have the gradient 0 unless the knob is 1 or infinite; the true one may be infinite.

    >>> power_mean(torch.tensor([1.0, 4.0]), 0), power_mean(torch.tensor([0.0, 4.0]), -1)
    (tensor(2.), tensor(0.))
    """
    _check_knob(knob)
    values, weights = _prepare(values, weights, dim)
    negative = values < 0 if weights is None else (values < 0) & (weights > 0)
    promise(~negative.any(), "a power mean is of values that are at least 0, got a negative one")
    if isinf(knob) or knob == 1:
        return log_exp_mean(values, 0 if knob == 1 else knob, dim, weights=weights)
    logarithms = torch.where(values > 0, values, 1).log().masked_fill(values <= 0, LOGARITHM_OF_ZERO)
    mean = log_exp_mean(logarithms, knob, dim, weights=weights).exp()
    return mean if weights is None else mean.masked_fill((weights == 0).all(dim), 0)


class _LogExpMean(torch.autograd.Function):
    """Keeps nothing but the values for the backward pass, where autograd would keep five tensors of their size."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor | None, knob: float, dim: int) -> Tensor:
        extreme = _extreme(values, weights, dim, knob > 0)
        ctx.save_for_backward(values, extreme, weights)
        ctx.knob, ctx.dim = knob, dim
        exponents = _exponents(values, weights, extreme, knob)  # at most 0
        total = values.shape[dim] if weights is None else _total(values, weights, dim, keepdim=True)
        # log(1 + mean expm1) keeps the digits of a small knob, log(mean exp) those of a large one and many values.
        less = _weigh(exponents.expm1(), weights).sum(dim, keepdim=True) / total
        mean = _weigh(exponents.exp(), weights).sum(dim, keepdim=True) / total
        logarithm = torch.where(less > -0.5, less.log1p(), mean.log())
        return (extreme + logarithm / knob).squeeze(dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        values, extreme, weights = ctx.saved_tensors
        shares = _weigh(_exponents(values, weights, extreme, ctx.knob).exp(), weights)
        total = shares.sum(ctx.dim, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
        return gradient.unsqueeze(ctx.dim) * (shares / total), None, None, None


def _exponents(values: Tensor, weights: Tensor | None, extreme: Tensor, knob: float) -> Tensor:
    exponents = knob * (values - extreme)
    return exponents if weights is None else exponents.masked_fill(weights == 0, 0)


def _weigh(terms: Tensor, weights: Tensor | None) -> Tensor:
    return terms if weights is None else terms * weights


def _extreme(values: Tensor, weights: Tensor | None, dim: int, largest: bool) -> Tensor:
    """The largest or smallest value that counts, with ``dim`` kept; 0 where none does."""
    if weights is None:
        return values.amax(dim, keepdim=True) if largest else values.amin(dim, keepdim=True)
    out = weights == 0
    filled = values.masked_fill(out, -torch.inf if largest else torch.inf)
    extreme = filled.amax(dim, keepdim=True) if largest else filled.amin(dim, keepdim=True)
    return extreme.masked_fill(out.all(dim, keepdim=True), 0)


def _total(values: Tensor, weights: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return weights.sum(dim, keepdim=keepdim).to(values.dtype).clamp(min=torch.finfo(values.dtype).tiny)


def _top(values: Tensor, k: int, dim: int, mask: Tensor | None) -> Tensor:
    """Indices of the ``k`` largest, or ``-k`` smallest, along ``dim``; of all if there are not so many."""
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
    values = values if values.dtype == torch.float64 else values.float()
    return values, None if weights is None else weights.expand_as(values)


def _check_knob(knob: float) -> None:
    if isinstance(knob, bool) or not isinstance(knob, (int, float)):
        raise TypeError(f"the knob must be a number, got {knob!r}")
    if isnan(knob):
        raise ValueError("the knob must be a number or -inf or inf, got nan")


Measure = Callable[[Tensor, Tensor], Tensor]  # of rows (r, D) and columns (c, D), one number for each pair: (r, c)


def similarities(rows: Tensor, columns: Tensor) -> Tensor:
    """Dot products (r, c)."""
    return rows @ columns.T


def distances(rows: Tensor, columns: Tensor, *, squared: bool = False) -> Tensor:
    """Euclidean distances (r, c), at least CLOSEST, with gradient 0 where they are raised to it.

    The product is taken in fp64, on devices that have it: in fp32 it would make up to 1e-3 of a distance that is 0.
    """
    wide = rows.dtype if rows.device.type == "mps" else torch.float64
    first, second = rows.to(wide), columns.to(wide)
    lengths = first.square().sum(1, keepdim=True) + second.square().sum(1)
    squares = torch.addmm(lengths, first, second.T, alpha=-2).clamp(min=CLOSEST**2).to(rows.dtype)
    return squares if squared else squares.sqrt()


def mean_over_pairs(
    points: Tensor, measure: Measure, mean: SkewedMean, *, present: Tensor | None = None, at_once: int | None = None
) -> Tensor:
    """The mean of a symmetric measure over all pairs of different points (n, D), each pair once; a scalar.

    present: (n,) bool, True for the points that take part. 0 if they make no pair.

    More than ``at_once`` points (None: what suits the device) are split, and the pairs walked through in tiles of
    ``at_once``^2 that the backward pass computes again, so memory does not grow with n^2. A K-skewed mean also keeps
    K values of every tile.
    """
    number, present = _number_and_presence(points, present)

    def summarise(first: Tensor, second: Tensor, rows: slice, columns: slice) -> Summary:
        mask = (number[rows].unsqueeze(1) < number[columns]) & present[rows].unsqueeze(1) & present[columns]
        return mean.summary(measure(first, second).flatten(), mask.flatten())

    parts = _parts(points, at_once)
    tiles = [(rows, columns) for start, rows in enumerate(parts) for columns in parts[start:]]
    values, weights = _walk(points, tiles, summarise)
    return mean(torch.cat(values), weights=torch.cat(weights))


def mean_over_others(
    points: Tensor, measure: Measure, mean: SkewedMean, *, present: Tensor | None = None, at_once: int | None = None
) -> Tensor:
    """For each of the points (n, D) the mean of its measures with all others: (n,). As ``mean_over_pairs`` else."""
    number, present = _number_and_presence(points, present)

    def summarise(first: Tensor, second: Tensor, rows: slice, columns: slice) -> Summary:
        return mean.summary(measure(first, second), (number[rows].unsqueeze(1) != number[columns]) & present[columns])

    parts = _parts(points, at_once)
    values, weights = _walk(points, [(rows, columns) for rows in parts for columns in parts], summarise)
    bands = [slice(start, start + len(parts)) for start in range(0, len(values), len(parts))]
    return torch.cat([mean(torch.cat(values[band], -1), weights=torch.cat(weights[band], -1)) for band in bands])


Summary = tuple[Tensor, Tensor]  # values and weights, see SkewedMean.summary
Tile = tuple[slice, slice]  # rows and columns


def _number_and_presence(points: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
    number = torch.arange(len(points), device=points.device)
    return number, torch.ones_like(number, dtype=torch.bool) if present is None else present


def _parts(points: Tensor, at_once: int | None) -> list[slice]:
    size = at_once or (CPU_TILE if points.device.type == "cpu" else OTHER_TILE)
    return [slice(start, start + size) for start in range(0, len(points), size)]


def _walk(
    points: Tensor, tiles: list[Tile], summarise: Callable[..., Summary]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    points = points if points.dtype == torch.float64 else points.float()
    with _without_autocast(points.device):
        if len(tiles) == 1:
            value, weight = summarise(points, points, *tiles[0])
            return (value,), (weight,)
        summaries = _Tiles.apply(points, tiles, summarise)
        return summaries[: len(tiles)], summaries[len(tiles) :]


class _Tiles(torch.autograd.Function):
    """Keeps the points alone, and computes every tile again in the backward pass.

    With torch.utils.checkpoint, gradients of all ages would lie between the tiles in memory, and it loads 900 modules
    when it is first called: 1.7 s and 150 MB.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, tiles: list[Tile], summarise: Callable[..., Summary]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(points)
        ctx.tiles, ctx.summarise = tiles, summarise
        values, weights = zip(
            *(summarise(points[row], points[column], row, column) for row, column in tiles), strict=True
        )
        ctx.mark_non_differentiable(*weights)
        return (*values, *weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (points,) = ctx.saved_tensors
        twice = torch.is_grad_enabled()
        total = torch.zeros_like(points)
        for (rows, columns), gradient in zip(ctx.tiles, gradients, strict=False):  # those of weights come after
            with torch.enable_grad(), _without_autocast(points.device):
                inputs = points[rows], points[columns]
                values, _ = ctx.summarise(*inputs, rows, columns)
                first, second = torch.autograd.grad(values, inputs, gradient, create_graph=twice)
            total[rows] += first
            total[columns] += second
        return total, None, None


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()
