"""Poolings that concatenate one vector per prototype: NetVLAD and optimal transport aggregation.

    embedding of size m * D  =  m prototypes x local features of size D

The model first projects the local features to ``local_dim`` = D. With 8 prototypes an embedding of size 128 has D = 16;
with 64 prototypes one of size 8192 has D = 128. These are the two sizes that Gürbüz, Şener and Alatan compare
("Generalized Sum Pooling for Metric Learning", ICCV 2023).
"""

from math import log, sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from lookalike._util.checks import check_count, check_range
from lookalike.geometry import clip, greedy_k_centre
from lookalike.pooling.base import Pooled, Pooling, as_points, pooled
from lookalike.pooling.layers import linear, mean_of_present
from lookalike.pooling.warmup import PrototypeInit, create_warm_up

NUM_PROTOTYPES = 8  # local features of size 16 for embeddings of size 128
ASSIGNMENT_RATIO = 100  # of the nearest to the second nearest centre in a new NetVLAD

Cost = Literal["dot", "distance"]


class PerPrototypePool(Pooling):
    """Pools local features (B, N, dim) into vectors (B, num_prototypes * dim).

    Args:
        dim: Size D of the local features.
        num_prototypes: Number of prototypes m.
    """

    has_weights = False

    def __init__(self, dim: int, num_prototypes: int) -> None:
        check_count("dim", dim)
        check_count("num_prototypes", num_prototypes)
        super().__init__(dim, num_prototypes * dim)
        self.num_prototypes = num_prototypes

    @classmethod
    def local_dim(cls, embedding_dim: int, settings: dict[str, Any]) -> int:
        """Return embedding_dim / num_prototypes.

        Args:
            embedding_dim: Size of the embedding.
            settings: Keyword arguments for the class.

        Raises:
            ValueError: If num_prototypes does not divide embedding_dim.
        """
        count = settings.get("num_prototypes", NUM_PROTOTYPES)
        check_count("num_prototypes", count)
        if embedding_dim % count:
            raise ValueError(
                f"num_prototypes must divide the size of the embedding, {embedding_dim}, because it holds one vector "
                f"per prototype, got {count}"
            )
        return embedding_dim // count

    @torch.no_grad()
    def init_from(self, features: Tensor, mask: Tensor | None = None) -> None:
        """Choose the prototypes among local features by greedy k-centre. Under DDP give every rank the same features.

        Args:
            features: Local features (K, D), tokens (B, N, D) or maps (B, D, H, W).
            mask: (B, N) bool, True where a feature is present.

        Raises:
            ValueError: If there are fewer features than prototypes, or a value is not finite.
        """
        self._start_from(as_points(features, self.dim, mask, self.num_prototypes))

    def _start_from(self, points: Tensor) -> None:
        """Set the prototypes in place, from local features (K, D)."""
        raise NotImplementedError


class NetVladPool(PerPrototypePool):
    """NetVLAD: the residuals of the local features to learnt centres, in vectors of norm 1.

        u_j  = feature_j / ||feature_j||                               if normalise_features, else the feature itself
        a_jk = softmax_k(w_k . u_j + b_k)                              soft assignment: a 1x1 convolution with bias
        v_k  = 1/n sum_j a_jk (u_j - c_k)                              residuals to the centres
        vector = unit(unit(v_1), ..., unit(v_m)),                      unit(v) = v / sqrt(||v||^2 + 1e-12)

    w, b and c are learnt separately. They start with w_k = 2 alpha c_k and b_k = -alpha ||c_k||^2, so that a_j is the
    softmax of -alpha || u_j - c_k ||^2, with alpha such that the nearest centre gets 100 times the share of the second
    nearest: alpha = log(100) / mean_j (second smallest - smallest || u_j - c_k ||^2). The attributes are the mean
    assignment, 1/n sum_j a_jk.

    Reference: Arandjelović, Gronat, Torii, Pajdla and Sivic, "NetVLAD: CNN architecture for weakly supervised place
    recognition", CVPR 2016. They use 64 centres by k-means. Here greedy k-centre chooses them, among random directions
    until ``init_from`` is called.

    Args:
        dim: Size D of the local features.
        num_prototypes: Number of centres m.
        normalise_features: Normalise the local features first. The comparison in "Generalized Sum Pooling for Metric
            Learning" does not.

    Examples:
        >>> NetVladPool(dim=16, num_prototypes=8)(torch.randn(4, 16, 7, 7)).shape
        torch.Size([4, 128])
    """

    has_attributes = True
    shown = ("num_prototypes", "normalise_features")

    def __init__(self, dim: int, num_prototypes: int = NUM_PROTOTYPES, *, normalise_features: bool = True) -> None:
        super().__init__(dim, num_prototypes)
        self.normalise_features = normalise_features
        self.centres = nn.Parameter(torch.empty(num_prototypes, dim))
        self.assignment = nn.Linear(dim, num_prototypes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Choose the centres among random directions."""
        if self.centres.is_meta:  # shapes without values
            return
        with torch.no_grad():
            self._start_from(_unit(torch.randn(16 * self.num_prototypes, self.dim).to(self.centres)))

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        bags = self._normalised(bags)
        shares = linear(self.assignment, bags).softmax(-1)
        present = bags.new_ones(1, bags.shape[1]) if mask is None else mask.to(bags.dtype)
        shares = shares * (present / present.sum(1, keepdim=True)).unsqueeze(-1)
        attributes = shares.sum(1)
        residuals = torch.bmm(shares.mT, bags) - attributes.unsqueeze(-1) * self.centres.to(bags.dtype)
        return pooled(_unit(_unit(residuals).flatten(1)), attributes=attributes)

    def _normalised(self, points: Tensor) -> Tensor:
        return _unit(points) if self.normalise_features else points

    def _start_from(self, points: Tensor) -> None:
        points = self._normalised(points.to(self.centres))
        centres = points[greedy_k_centre(points, self.num_prototypes).indices]
        alpha = 1.0  # has no effect on a single centre
        if self.num_prototypes > 1:
            nearest = torch.cdist(points, centres).square().topk(2, largest=False).values
            gap = float((nearest[:, 1] - nearest[:, 0]).mean())
            if gap <= 0:
                raise ValueError("the local features must differ to choose centres among them, got equal ones")
            alpha = log(ASSIGNMENT_RATIO) / gap
        self.centres.copy_(centres)  # in place: the optimizer refers to these Parameters
        self.assignment.weight.copy_(2 * alpha * centres)
        self.assignment.bias.copy_(-alpha * centres.square().sum(1))


class OptimalTransportPool(PerPrototypePool):
    """Optimal transport aggregation: each prototype gets an equal share of the bag.

        plan = argmin <c, plan> + 1/sharpness * sum plan log plan      s.t. sum_i plan_ij = 1/n, sum_j plan_ij = 1/m
        vector = sqrt(m) * (sum_j plan_1j feature_j, ..., sum_j plan_mj feature_j)

    All positions and all prototypes have equal mass, so there are no weights and no attributes.

    Reference: Mialon, Chen, d'Aspremont and Mairal, "A Trainable Optimal Transport Embedding for Feature Aggregation
    and its Relationship to Attention", ICLR 2021, with one head, no positions and the linear kernel (cost "dot"). Their
    sharpness 1/epsilon is 10 with 10 iterations, for features of about norm 1. They start from data by spherical
    k-means, here by greedy k-centre. "Generalized Sum Pooling for Metric Learning" (ICCV 2023) compares with it as
    (P4), with cost "distance", sharpness 2, 10 iterations and init "k-centre-released".

    Args:
        dim: Size D of the local features.
        num_prototypes: Number of prototypes m.
        sharpness: Above 0. Towards 0 every prototype gets the average of the bag.
        iterations: Iterations of Sinkhorn.
        cost: "dot" for -<prototype, feature>, "distance" for the distance of vectors clipped to the unit ball.
        init: "random", or "k-centre" or "k-centre-released" as in ``GeneralizedSumPool``. Until the prototypes are
            chosen, the vector is the average of the features followed by zeros, as in the code of GSP's authors.
        memory: Number of averages to collect for the k-centre starts.
        delay: Training steps to wait before collecting.

    Examples:
        >>> OptimalTransportPool(dim=16, num_prototypes=8)(torch.randn(4, 16, 7, 7)).shape
        torch.Size([4, 128])
    """

    shown = ("num_prototypes", "sharpness", "iterations", "cost")

    def __init__(
        self,
        dim: int,
        num_prototypes: int = NUM_PROTOTYPES,
        *,
        sharpness: float = 10.0,
        iterations: int = 10,
        cost: Cost = "dot",
        init: PrototypeInit = "random",
        memory: int = 1024,
        delay: int = 0,
    ) -> None:
        super().__init__(dim, num_prototypes)
        check_range("sharpness", sharpness, 0, None)
        check_count("iterations", iterations)
        if cost not in ("dot", "distance"):
            raise ValueError(f"cost must be 'dot' or 'distance', got {cost!r}")
        self.sharpness, self.iterations, self.cost = float(sharpness), iterations, cost
        self.prototypes = nn.Parameter(torch.empty(num_prototypes, dim))
        self.warm_up = create_warm_up(init, dim, num_prototypes, memory, delay)
        self.reset_parameters()

    @property
    def ready(self) -> bool:
        """False while the prototypes wait for data."""
        return self.warm_up is None or self.warm_up.done

    def reset_parameters(self) -> None:
        """Draw prototypes from [-1/sqrt(m), 1/sqrt(m)], as the authors do."""
        bound = 1 / sqrt(self.num_prototypes)
        nn.init.uniform_(self.prototypes, -bound, bound)

    def plan(self, bags: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the transport to the prototypes.

        Args:
            bags: (B, N, D).
            mask: (B, N) bool, True where a feature is present.

        Returns:
            The plan (B, m, N), zero where absent.
        """
        prototypes = self.prototypes.to(bags.dtype)
        if self.cost == "dot":
            cost = -(prototypes @ bags.mT)
        else:
            exact = "donot_use_mm_for_euclid_dist"
            cost = torch.cdist(clip(prototypes), clip(bags), compute_mode=exact)
        return sinkhorn(cost, self.sharpness, self.iterations, mask)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        if self.training and self.warm_up is not None and not self.warm_up.done:
            prototypes = self.warm_up.collect(mean_of_present(bags, mask))
            if prototypes is not None:
                with torch.no_grad():
                    self.prototypes.copy_(self._comparable(prototypes))  # in place: the optimizer holds this Parameter
        if not self.ready:
            # DDP expects a gradient for every parameter.
            average = mean_of_present(bags, mask) + 0 * self.prototypes.sum().to(bags.dtype)
            return pooled(pad(average, (0, self.out_dim - self.dim)))
        blocks = torch.bmm(self.plan(bags, mask), bags)
        return pooled(sqrt(self.num_prototypes) * blocks.flatten(1))

    def _start_from(self, points: Tensor) -> None:
        points = self._comparable(points.to(self.prototypes))
        self.prototypes.copy_(points[greedy_k_centre(points, self.num_prototypes).indices])
        if self.warm_up is not None:
            self.warm_up.finish()

    def _comparable(self, points: Tensor) -> Tensor:
        return normalize(points, dim=-1) if self.cost == "dot" else clip(points)


def sinkhorn(cost: Tensor, sharpness: float, iterations: int, mask: Tensor | None = None) -> Tensor:
    """Compute an entropic transport plan between uniform masses, by Sinkhorn in the log domain.

    Each iteration scales columns, then rows, so the row sums are exact and the column sums nearly so.

    Args:
        cost: (B, m, n).
        sharpness: Inverse strength of the entropy.
        iterations: Number of iterations.
        mask: (B, n) bool, True where a feature is present.

    Returns:
        The plan (B, m, n) with row sums 1/m.

    Examples:
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


def _unit(vectors: Tensor) -> Tensor:
    """Normalise vectors (..., D). Those with a norm far below 1e-6 go smoothly to 0, as in the authors' code."""
    return vectors / (vectors.square().sum(-1, keepdim=True) + 1e-12).sqrt()
