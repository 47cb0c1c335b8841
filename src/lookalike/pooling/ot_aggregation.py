"""Optimal transport aggregation: each prototype gets an equal share of the bag, the part that suits it best.

    plan = argmin <c, plan> + 1/sharpness * sum plan log plan      s.t. sum_i plan_ij = 1/n, sum_j plan_ij = 1/m
    vector = sqrt(m) * (sum_j plan_1j feature_j, ..., sum_j plan_mj feature_j)

by a fixed number of Sinkhorn rounds in the log domain, features first and prototypes last, so that the shares of the
prototypes are exact and those of the features nearly so. Every place weighs 1/n in all and every prototype gets 1/m,
so there are neither weights nor attributes to show: nothing is left out of a bag.

Reference: Mialon, Chen, d'Aspremont and Mairal, "A Trainable Optimal Transport Embedding for Feature Aggregation and
its Relationship to Attention", ICLR 2021; one reference (head), no positions. Their cost is a kernel, ``c = -k(z, x)``;
here it is the linear one, ``-z . x`` (cost "dot"), which is what their layer computes on features that it is given.
Their epsilon is 1/sharpness, 0.1; 100 rounds, or 10 when trained with labels. They suppose features of about norm 1.
Their prototypes start in [-1/sqrt(m), 1/sqrt(m)]; those from data by spherical k-means, here by greedy k-centre.

"Generalized Sum Pooling for Metric Learning" (ICCV 2023), which compares with it as (P4), takes the distance of
vectors clipped to the unit ball (cost "distance") instead, with sharpness 2 and 10 rounds.
"""

from math import log, sqrt
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lookalike._util.checks import check_count, check_range
from lookalike.geometry import clip, greedy_k_centre
from lookalike.pooling.base import Pooled, pooled
from lookalike.pooling.per_prototype import NUM_PROTOTYPES, PerPrototypePool

Cost = Literal["dot", "distance"]


class OptimalTransportPool(PerPrototypePool):
    """Pool local features (B, N, D) into vectors (B, num_prototypes * D).

    dim: D.  num_prototypes: m.  sharpness: above 0; towards 0 every prototype gets the average of the bag.
    iterations: rounds of Sinkhorn.  cost: "dot" or "distance", see above.

    >>> OptimalTransportPool(dim=16, num_prototypes=8)(torch.randn(4, 16, 7, 7)).shape
    torch.Size([4, 128])
    """

    def __init__(
        self,
        dim: int,
        num_prototypes: int = NUM_PROTOTYPES,
        *,
        sharpness: float = 10.0,
        iterations: int = 10,
        cost: Cost = "dot",
    ) -> None:
        super().__init__(dim, num_prototypes)
        check_range("sharpness", sharpness, 0, None)
        check_count("iterations", iterations)
        if cost not in ("dot", "distance"):
            raise ValueError(f"cost must be 'dot' or 'distance', got {cost!r}")
        self.sharpness, self.iterations, self.cost = float(sharpness), iterations, cost
        self.prototypes = nn.Parameter(torch.empty(num_prototypes, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The authors' start without data."""
        bound = 1 / sqrt(self.num_prototypes)
        nn.init.uniform_(self.prototypes, -bound, bound)

    def extra_repr(self) -> str:
        text = f"dim={self.dim}, num_prototypes={self.num_prototypes}, sharpness={self.sharpness:.4g}"
        return text + f", iterations={self.iterations}, cost={self.cost!r}"

    def plan(self, bags: Tensor, mask: Tensor | None = None) -> Tensor:
        """The transport (B, m, N) of bags (B, N, D) to the prototypes; zero where absent."""
        prototypes = self.prototypes.to(bags.dtype)
        if self.cost == "dot":
            cost = -(prototypes @ bags.mT)
        else:
            exact = "donot_use_mm_for_euclid_dist"
            cost = torch.cdist(clip(prototypes), clip(bags), compute_mode=exact)
        return sinkhorn(cost, self.sharpness, self.iterations, mask)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        blocks = torch.bmm(self.plan(bags, mask), bags)
        return pooled(sqrt(self.num_prototypes) * blocks.flatten(1))

    def _start_from(self, points: Tensor) -> None:
        points = points.to(self.prototypes)
        points = normalize(points, dim=-1) if self.cost == "dot" else clip(points)
        self.prototypes.copy_(points[greedy_k_centre(points, self.num_prototypes).indices])


def sinkhorn(cost: Tensor, sharpness: float, iterations: int, mask: Tensor | None = None) -> Tensor:
    """Cost (B, m, n), mask (B, n) -> the entropic plan (B, m, n) between uniform masses, rows summing to 1/m exactly.

    >>> sinkhorn(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), sharpness=1.0, iterations=10)
    tensor([[[0.3655, 0.1345],
             [0.1345, 0.3655]]])
    """
    m, n = cost.shape[-2:]
    log_kernel = cost * -sharpness
    present = cost.new_ones(1, n) if mask is None else mask.to(cost.dtype)
    log_mass = (present / present.sum(1, keepdim=True)).log()  # -inf where absent: no mass, no gradient
    row = cost.new_zeros(cost.shape[:-1])
    for _ in range(iterations):
        column = log_mass - (log_kernel + row.unsqueeze(-1)).logsumexp(-2)
        row = -log(m) - (log_kernel + column.unsqueeze(-2)).logsumexp(-1)
    return (log_kernel + row.unsqueeze(-1) + column.unsqueeze(-2)).exp()
