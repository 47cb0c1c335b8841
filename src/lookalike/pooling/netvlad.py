"""NetVLAD: how the local features near each centre differ from it.

    u_j  = feature_j / ||feature_j||                               (normalise_features; else the feature itself)
    a_jk = softmax_k(w_k . u_j + b_k)                              soft assignment: a 1x1 convolution with bias
    v_k  = 1/n sum_j a_jk (u_j - c_k)                              residuals to the centres
    vector = unit(unit(v_1), ..., unit(v_m)),                      unit(v) = v / sqrt(||v||^2 + 1e-12)

The attributes are the mean assignment, ``1/n sum_j a_jk``.

Reference: Arandjelović, Gronat, Torii, Pajdla and Sivic, "NetVLAD: CNN architecture for weakly supervised place
recognition", CVPR 2016. w, b and c are learnt apart, and start coupled: w_k = 2 alpha c_k and b_k = -alpha ||c_k||^2,
so that a_j is the softmax of -alpha || u_j - c_k ||^2. The authors choose alpha so that the nearest centre gets, on
average, 100 times the share of the second nearest,

    alpha = log(100) / mean_j (second smallest - smallest || u_j - c_k ||^2),

64 centres by k-means, and normalise the features. Here the centres are chosen by greedy k-centre, as the prototypes
of generalized sum pooling; until ``init_from`` is called, among random directions. The authors sum over the places,
which is the same up to the tiny constant in ``unit``.
"""

from math import log

import torch
from torch import Tensor, nn

from lookalike.geometry import greedy_k_centre
from lookalike.pooling.base import Pooled, pooled
from lookalike.pooling.layers import linear
from lookalike.pooling.per_prototype import NUM_PROTOTYPES, PerPrototypePool

ASSIGNMENT_RATIO = 100  # of the nearest to the second nearest centre, at the start
FLOOR = 1e-12  # of a squared norm


class NetVladPool(PerPrototypePool):
    """Pool local features (B, N, D) into vectors (B, num_prototypes * D) of norm 1.

    dim: D.  num_prototypes: the centres.  normalise_features: each local feature to norm 1 first; without it, as in
    the comparison in "Generalized Sum Pooling for Metric Learning", features may differ in length as well.

    >>> NetVladPool(dim=16, num_prototypes=8)(torch.randn(4, 16, 7, 7)).shape
    torch.Size([4, 128])
    """

    has_attributes = True

    def __init__(self, dim: int, num_prototypes: int = NUM_PROTOTYPES, *, normalise_features: bool = True) -> None:
        super().__init__(dim, num_prototypes)
        self.normalise_features = normalise_features
        self.centres = nn.Parameter(torch.empty(num_prototypes, dim))
        self.assignment = nn.Linear(dim, num_prototypes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A start without data: as if the local features lay in random directions."""
        if self.centres.is_meta:  # shapes without values
            return
        with torch.no_grad():
            self._start_from(unit(torch.randn(16 * self.num_prototypes, self.dim).to(self.centres)))

    def extra_repr(self) -> str:
        text = f"dim={self.dim}, num_prototypes={self.num_prototypes}"
        return text if self.normalise_features else text + ", normalise_features=False"

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        bags = self._prepared(bags)
        shares = linear(self.assignment, bags).softmax(-1)
        present = bags.new_ones(1, bags.shape[1]) if mask is None else mask.to(bags.dtype)
        shares = shares * (present / present.sum(1, keepdim=True)).unsqueeze(-1)
        attributes = shares.sum(1)
        residuals = torch.bmm(shares.mT, bags) - attributes.unsqueeze(-1) * self.centres.to(bags.dtype)
        return pooled(unit(unit(residuals).flatten(1)), attributes=attributes)

    def _prepared(self, points: Tensor) -> Tensor:
        return unit(points) if self.normalise_features else points

    def _start_from(self, points: Tensor) -> None:
        points = self._prepared(points.to(self.centres))
        centres = points[greedy_k_centre(points, self.num_prototypes).indices]
        alpha = 1.0  # of a single centre it does not matter
        if self.num_prototypes > 1:
            nearest = torch.cdist(points, centres).square().topk(2, largest=False).values
            gap = float((nearest[:, 1] - nearest[:, 0]).mean())
            if gap <= 0:
                raise ValueError("the local features must differ for centres to be told apart, got all alike")
            alpha = log(ASSIGNMENT_RATIO) / gap
        self.centres.copy_(centres)  # in place: the optimiser holds these very Parameters
        self.assignment.weight.copy_(2 * alpha * centres)
        self.assignment.bias.copy_(-alpha * centres.square().sum(1))


def unit(vectors: Tensor) -> Tensor:
    """Vectors (..., D) of norm 1, those far below 1e-6 of norm 0, and smooth in between, as the authors have it."""
    return vectors / (vectors.square().sum(-1, keepdim=True) + FLOOR).sqrt()
