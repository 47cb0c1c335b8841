"""CroW, cross-dimensional weighting: loud places count more, and so do rare channels.

    S_j = sum_d x_jd,    s_j = (S_j / (sum_k S_k^a)^(1/a))^(1/b)      places, a = b = 2
    Q_d = share of the places with x_jd > 0,
    c_d = log(sum_h Q_h / Q_d), 0 where Q_d = 0                       channels
    vector_d = c_d sum_j s_j x_jd

All weights come from the picture itself; nothing is learnt. The features must not be negative, as after a ReLU:
negative ones count as 0. Where no feature is ever 0, every channel weighs log D. The channel weights are counts and
pass no gradient on; the place weights do.

Reference: Kalantidis, Mellina and Osindero, "Cross-dimensional Weighting for Aggregated Deep Convolutional Features",
ECCV 2016 workshops. The paper adds a small constant to both sides of the fraction; that matters for channels that are
0 throughout only, of which the vector is 0 either way, and the authors' code leaves it out as we do. They normalise,
whiten and normalise the vector again; here that is the model's business.
"""

import torch
from torch import Tensor

from lookalike._util.checks import check_range
from lookalike.pooling.base import Pooled, Pooling, pooled


class CrossDimensionalPool(Pooling):
    """CroW. The weights of places are s_j over their sum, or all alike if the whole bag is 0.

    norm: a.  root: b, in the paper's names.

    >>> pool = CrossDimensionalPool(dim=2, root=1.0)
    >>> pool(torch.tensor([[[3.0, 0.0], [2.0, 2.0]]]))  # s = 3/5, 4/5 and c = log 1.5, log 3
    tensor([[1.3786, 1.7578]])
    """

    on_backbone = True

    def __init__(self, dim: int, norm: float = 2.0, root: float = 2.0) -> None:
        super().__init__(dim)
        check_range("norm", norm, 0, None)
        check_range("root", root, 0, None)
        self.norm, self.root = float(norm), float(root)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        bags = bags.relu()
        present = torch.ones_like(bags[:, :, 0]) if mask is None else mask.to(bags.dtype)
        places = _place_weights(bags.sum(2), self.norm, self.root)
        filled = (bags > 0).sum(1).to(bags.dtype)  # n Q: the n cancels
        channels = (filled.sum(1, keepdim=True) / filled).log().masked_fill(filled == 0, 0)
        total = places.sum(1, keepdim=True)
        silent = total == 0
        weights = torch.where(silent, present, places) / torch.where(silent, present.sum(1, keepdim=True), total)
        return pooled(channels * torch.einsum("bn,bnd->bd", places, bags), weights)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, norm={self.norm:g}, root={self.root:g}"


def _place_weights(sums: Tensor, norm: float, root: float) -> Tensor:
    """(B, N) -> (B, N). Silent places get weight 0 and no gradient: there the root has none that is finite."""
    silent = sums == 0
    largest = sums.detach().amax(1, keepdim=True)  # in front of the norm, lest a power over- or underflow
    scaled = torch.where(silent, 1, sums / torch.where(largest == 0, 1, largest))
    length = scaled.pow(norm).masked_fill(silent, 0).sum(1, keepdim=True)
    length = torch.where(largest == 0, 1, length).pow(1 / norm)
    return (scaled / length).pow(1 / root).masked_fill(silent, 0)
