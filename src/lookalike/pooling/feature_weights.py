"""Poolings without parameters whose weights are computed from the features: CroW, SMK and generalized max."""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from lookalike._util.checks import check_range
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.layers import check_odd
from lookalike.pooling.transport import solver_dtype

SMALLEST_SQUARE = 1e-10  # added to squared norms, so that the root has a gradient at zero
# Smallest ridge in units of rounding times the trace. Below it a Cholesky factor may not exist.
RIDGE_FLOOR = 16


class CrossDimensionalPool(Pooling):
    """CroW: positions with large sums and rare channels get large weights.

        S_j = sum_d x_jd,    s_j = (S_j / (sum_k S_k^a)^(1/a))^(1/b)      positions, a = b = 2
        Q_d = share of the positions with x_jd > 0,
        c_d = log(sum_h Q_h / Q_d), 0 where Q_d = 0                       channels
        vector_d = c_d sum_j s_j x_jd

    Negative features count as 0. If no feature is 0, every channel has the weight log D. There is no gradient through
    c. The weights are s_j / sum_k s_k, or uniform if the bag is 0.

    Reference: Kalantidis, Mellina and Osindero, "Cross-dimensional Weighting for Aggregated Deep Convolutional
    Features", ECCV 2016 workshops. Like their code, this has no constant in the fraction of c. The model does the
    normalisation.

    Args:
        dim: Size D of the local features.
        norm: The exponent a.
        root: The exponent b.

    Examples:
        >>> pool = CrossDimensionalPool(dim=2, root=1.0)
        >>> pool(torch.tensor([[[3.0, 0.0], [2.0, 2.0]]]))  # s = 3/5, 4/5 and c = log 1.5, log 3
        tensor([[1.3786, 1.7578]])
    """

    on_backbone = True
    shown = ("norm", "root")
    is_weighted_sum = True

    def __init__(self, dim: int, norm: float = 2.0, root: float = 2.0) -> None:
        super().__init__(dim)
        check_range("norm", norm, 0, None)
        check_range("root", root, 0, None)
        self.norm, self.root = float(norm), float(root)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        bags = bags.relu()
        present = torch.ones_like(bags[:, :, 0]) if mask is None else mask.to(bags.dtype)
        scores = _position_scores(bags.sum(2), self.norm, self.root)
        channels = _channel_weights(bags)
        total = scores.sum(1, keepdim=True)
        is_zero = total == 0
        weights = torch.where(is_zero, present, scores) / torch.where(is_zero, present.sum(1, keepdim=True), total)
        return pooled(channels * torch.einsum("bn,bnd->bd", scores, bags), weights)

    def _values(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Tensor:
        del mask, grid
        bags = bags.relu()
        return _channel_weights(bags).unsqueeze(1) * bags


class SmkPool(Pooling):
    """The training-time pooling of HOW: smoothed features, weighted by their norms before smoothing.

        weight_j = ||feature_j||,   ||u|| = sqrt(u . u + 1e-10)
        x_j      = mean of the features in the 3x3 window around j
        vector   = sum_j weight_j x_j / sum_j weight_j

    A linear match kernel (SMK) of two images is the inner product of two such sums, so training the sum trains the
    local features. Absent features are left out of the window, as those outside the map.

    Reference: Tolias, Jenicek and Chum, "Learning and Aggregating Deep Local Descriptors for Instance-Level
    Recognition", ECCV 2020. The projection of the model takes the role of their fixed whitening.

    Args:
        dim: Size D of the local features.
        window: Side of the window, odd; 1: no smoothing.

    Examples:
        >>> SmkPool(dim=128)
        SmkPool(dim=128, window=3)
    """

    on_backbone = True
    needs_map = True
    shown = ("window",)
    is_weighted_sum = True

    def __init__(self, dim: int, *, window: int = 3) -> None:
        super().__init__(dim)
        check_odd("window", window)
        self.window = window

    def _pool_map(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Pooled:
        norms = (bags.square().sum(-1) + SMALLEST_SQUARE).sqrt()
        if mask is not None:
            norms = norms * mask
        weights = norms / norms.sum(1, keepdim=True)
        return pooled((weights.unsqueeze(1) @ self._values(bags, mask, grid)).squeeze(1), weights)

    def _values(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Tensor:
        maps = self._window_means(bags.transpose(1, 2).unflatten(2, grid))
        if mask is not None:  # absent features are zero: only the divisor needs a correction
            present = self._window_means(mask.to(bags.dtype).unflatten(1, grid).unsqueeze(1))
            maps = maps / present.clamp(min=1 / self.window**2)
        return maps.flatten(2).transpose(1, 2)

    def _window_means(self, maps: Tensor) -> Tensor:
        return avg_pool2d(maps, self.window, stride=1, padding=self.window // 2, count_include_pad=False)


class GeneralizedMaxPool(Pooling):
    """Generalized max pooling: the vector that matches every local feature equally well, rare or frequent.

        vector = argmin_v  sum_j (x_j . v - 1)^2 + ridge ||v||^2
               = X^T alpha,    alpha = (X X^T + ridge I_N)^-1 1        the dual, N equations
               = (X^T X + ridge I_D)^-1 X^T 1                          the primal, D equations

    X holds the features as rows. The smaller system is solved by Cholesky, in fp64 where the device has it: with
    features of norm 100 the condition number is too large for fp32. The weights are |alpha_j| / sum_k |alpha_k|, since
    alpha may be negative.

    References: Murray and Perronnin, "Generalized Max Pooling", CVPR 2014; Murray, Jégou, Perronnin and Zisserman,
    "Interferences in Match Kernels", TPAMI 2017. Christlein et al., "Deep Generalized Max Pooling", ICDAR 2019, learn
    the ridge from 1000; the authors of GSP compare with 1.

    Args:
        dim: Size D of the local features.
        ridge: Above 0, in units of squared features. Towards 0 all matches are equal, towards infinity the vector has
            the direction of the sum.

    Examples:
        >>> GeneralizedMaxPool(dim=2, ridge=1.0)(torch.tensor([[[3.0, 0.0], [0.0, 1.0]]]))
        tensor([[0.3000, 0.5000]])
    """

    on_backbone = True
    shown = ("ridge",)

    def __init__(self, dim: int, ridge: float = 1.0) -> None:
        super().__init__(dim)
        check_range("ridge", ridge, 0, None)
        self.ridge = float(ridge)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        rows = bags.to(solver_dtype(bags))
        ones = rows.new_ones(rows.shape[:2]) if mask is None else mask.to(rows.dtype)
        trace = rows.detach().square().sum((1, 2))
        ridge = (self.ridge + RIDGE_FLOOR * torch.finfo(rows.dtype).eps * trace).unsqueeze(1)
        if rows.shape[1] <= rows.shape[2]:
            alpha = _ridge_solve(rows @ rows.mT, ridge, ones)
            vector = torch.einsum("bn,bnd->bd", alpha, rows)
        else:
            vector = _ridge_solve(rows.mT @ rows, ridge, torch.einsum("bn,bnd->bd", ones, rows))
            alpha = (ones - torch.einsum("bnd,bd->bn", rows, vector)) / ridge
        sizes = alpha.abs()
        weights = sizes / sizes.sum(1, keepdim=True)
        return pooled(vector.to(bags.dtype), weights.to(bags.dtype))


def _channel_weights(bags: Tensor) -> Tensor:
    """The c_d of CroW (B, D) for features that are not negative."""
    active = (bags > 0).sum(1).to(bags.dtype)  # n Q: the n cancels
    return (active.sum(1, keepdim=True) / active).log().masked_fill(active == 0, 0)


def _position_scores(sums: Tensor, norm: float, root: float) -> Tensor:
    """The s_j of CroW (B, N) for sums S_j. Zeros get score 0 and no gradient: that of the root is infinite there."""
    is_zero = sums == 0
    largest = sums.detach().amax(1, keepdim=True)  # factored out, so that no power overflows or underflows
    scaled = torch.where(is_zero, 1, sums / torch.where(largest == 0, 1, largest))
    length = scaled.pow(norm).masked_fill(is_zero, 0).sum(1, keepdim=True)
    length = torch.where(largest == 0, 1, length).pow(1 / norm)
    return (scaled / length).pow(1 / root).masked_fill(is_zero, 0)


def _ridge_solve(gram: Tensor, ridge: Tensor, right: Tensor) -> Tensor:
    """(gram + ridge I)^-1 right: (B, M, M), (B, 1), (B, M) -> (B, M)."""
    system = gram + torch.diag_embed(ridge.expand(-1, gram.shape[1]))
    factor, _ = torch.linalg.cholesky_ex(system)  # without "_ex" the host waits for the device
    return torch.cholesky_solve(right.unsqueeze(2), factor).squeeze(2)
