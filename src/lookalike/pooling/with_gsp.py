"""Generalized sum pooling beside a pooling that chooses for each channel: the maximum or the generalized mean.

    max+gsp:  vector = project(max_j x_j) + gsp(project(x))
    gem+gsp:  vector = project(gem(n p_j x_j)),      p = the weights of gsp(project(x))

x are the backbone's own features (B, N, C), whose channels the two are made for; GSP sees them projected to the size of
the embedding, where its prototypes live. So these poolings take both, from ``lookalike.models.embedder.Head``. On their
own they take the one bag they are given for both, and nothing is projected.

The weights p_j sum to 1 over the n present places, so they enter GeM as n p_j: where they are uniform, features stay as
they are. The power of GeM starts from 3 and is learnt; a feature that GSP leaves out counts as GeM's 1e-6.

Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023: GMP+GSP and GeMean+GSP,
as their code has them, but for one thing. While the prototypes wait for their start from data, it pools by the
projected average; here gem+gsp is plain GeM then, the same formula at uniform weights.
"""

from collections.abc import Callable
from typing import ClassVar, Literal, overload

import torch
from torch import Tensor

from lookalike.pooling.average import MaxPool
from lookalike.pooling.bags import as_bags
from lookalike.pooling.base import Pooled, Pooling
from lookalike.pooling.gsp import GeneralizedSumPool
from lookalike.pooling.kernel import without_autocast
from lookalike.pooling.power import GeneralizedMeanPool

Project = Callable[[Tensor], Tensor]


class _WithGsp(Pooling):
    """What both are. Settings are those of ``GeneralizedSumPool``, here the attribute ``gsp``; attributes are GSP's."""

    sees_both = True
    has_attributes = True
    in_unit_ball = True
    kind: ClassVar[type[Pooling]]  # of the pooling beside GSP

    def __init__(
        self,
        dim: int,
        num_prototypes: int = 64,
        keep: float = 0.3,
        sharpness: float = 5.0,
        *,
        radius: float = 1.0,
        learn_keep: bool = False,
        learn_sharpness: bool = False,
        background: bool = False,
        init: Literal["random", "k-centre"] = "random",
        memory: int = 1024,
        delay: int = 0,
        check_finite: bool = False,
    ) -> None:
        super().__init__(dim)
        self.gsp = GeneralizedSumPool(
            dim,
            num_prototypes,
            keep,
            sharpness,
            radius=radius,
            learn_keep=learn_keep,
            learn_sharpness=learn_sharpness,
            background=background,
            init=init,
            memory=memory,
            delay=delay,
            check_finite=check_finite,
        )
        self.beside = self.kind(dim)

    @property
    def num_prototypes(self) -> int:
        return self.gsp.num_prototypes

    @property
    def ready(self) -> bool:
        """False while GSP's prototypes wait for their start from data."""
        return self.gsp.ready

    def init_from(self, features: Tensor, mask: Tensor | None = None) -> None:
        """``GeneralizedSumPool.init_from``, of projected features."""
        self.gsp.init_from(features, mask)

    @overload
    def forward(
        self,
        features: Tensor,
        mask: Tensor | None = None,
        *,
        details: Literal[False] = False,
        backbone: Tensor | None = None,
        project: Project | None = None,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        features: Tensor,
        mask: Tensor | None = None,
        *,
        details: Literal[True],
        backbone: Tensor | None = None,
        project: Project | None = None,
    ) -> Pooled: ...
    def forward(
        self,
        features: Tensor,
        mask: Tensor | None = None,
        *,
        details: bool = False,
        backbone: Tensor | None = None,
        project: Project | None = None,
    ) -> Tensor | Pooled:
        """Projected features (B, N, D) or maps, the backbone's own (B, N, C) or maps, and what takes (B, C) to (B, D).

        ``backbone`` and ``project`` go together; without them the features are their own backbone's.
        """
        if (backbone is None) != (project is None):
            raise ValueError("backbone and project go together, got one of them")
        bags = _bags(features, self.dim, mask)
        own = bags if backbone is None else _bags(backbone, backbone.shape[1 if backbone.dim() == 4 else -1], mask)
        if own.shape[:2] != bags.shape[:2]:
            raise ValueError(f"backbone must have the places {tuple(bags.shape[:2])}, got {tuple(own.shape[:2])}")
        result = self._both(self.gsp(bags, mask, details=True), own, mask, project or _as_it_is)
        vector = result.vector.to(features.dtype)
        return result._replace(vector=vector) if details else vector

    def _both(self, selected: Pooled, own: Tensor, mask: Tensor | None, project: Project) -> Pooled:
        """What GSP saw, the backbone's bags (B, N, C) in fp32 or fp64 -> the vector, in that precision."""
        raise NotImplementedError

    def _beside(self, own: Tensor, mask: Tensor | None) -> Pooled:
        """Not through ``forward``: the backbone has channels of its own number."""
        with without_autocast(own.device):
            return self.beside._pool(own, mask)


class MaxWithGsp(_WithGsp):
    """The projected maximum plus GSP; the weight of a place is the mean of its weights in both.

    >>> MaxWithGsp(dim=8, num_prototypes=4)(torch.randn(2, 8, 3, 3)).shape
    torch.Size([2, 8])
    """

    kind = MaxPool

    def _both(self, selected: Pooled, own: Tensor, mask: Tensor | None, project: Project) -> Pooled:
        largest = self._beside(own, mask)
        weights = largest.weights / largest.weights.sum(1, keepdim=True)  # it counts the channels of ``dim``
        return Pooled(project(largest.vector) + selected.vector, (weights + selected.weights) / 2, selected.attributes)


class GemWithGsp(_WithGsp):
    """The generalized mean of features weighted by GSP; the weights are GeM's, of the weighted features.

    >>> GemWithGsp(dim=8, num_prototypes=4)(torch.rand(2, 8, 3, 3)).shape
    torch.Size([2, 8])
    """

    kind = GeneralizedMeanPool

    def _both(self, selected: Pooled, own: Tensor, mask: Tensor | None, project: Project) -> Pooled:
        count = own.shape[1] if mask is None else mask.sum(1, keepdim=True)
        mean = self._beside(own * (count * selected.weights).unsqueeze(-1), mask)
        vector = project(mean.vector)
        if not self.ready:  # the weights are uniform, but DDP wants every parameter to take part
            vector = vector + 0 * selected.vector
        return Pooled(vector, mean.weights, selected.attributes)


def _bags(features: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    bags = as_bags(features, dim, mask)
    return bags if bags.dtype == torch.float64 else bags.float()


def _as_it_is(vectors: Tensor) -> Tensor:
    return vectors
