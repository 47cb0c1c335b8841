"""Generalized sum pooling combined with max pooling or the generalized mean.

    max+gsp:           vector = project(max_j x_j) + gsp(project(x))
    gem+gsp:           vector = project(gem(n p_j x_j)),      p = the weights of gsp(project(x))
    weighted-max+gsp:  vector = project(max_j n p_j x_j)

x are the backbone's features (B, N, C), for which max and GeM were designed. GSP sees them projected to the size of the
embedding, where its prototypes are. So these poolings take both, from ``lookalike.models.embedder.Head``. Called with
one bag only, they use it for both and nothing is projected.

The weights p_j sum to 1 over the n present places and enter as n p_j: uniform weights leave the features unchanged.
The power of GeM starts at 3 and is learnt. A feature that GSP ignores counts as GeM's lower bound 1e-6.

Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023: GMP+GSP and GeMean+GSP,
as in their code with one difference. While the prototypes wait for data, their code pools by the projected average;
here gem+gsp is plain GeM, the same formula with uniform weights. weighted-max+gsp is what their code for GSP + LIBC
does; it is plain max pooling while the prototypes wait for data.
"""

from collections.abc import Callable
from typing import ClassVar, Literal, overload

from torch import Tensor, nn

from lookalike.pooling.autograd import precise, without_autocast
from lookalike.pooling.base import Pooled, Pooling, as_bags
from lookalike.pooling.gsp import GeneralizedSumPool
from lookalike.pooling.per_channel import GeneralizedMeanPool, MaxPool
from lookalike.pooling.warmup import PrototypeInit

Project = Callable[[Tensor], Tensor]


class _WithGsp(Pooling):
    """Base class. The arguments are those of ``GeneralizedSumPool``, which is the attribute ``gsp``."""

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
        init: PrototypeInit = "random",
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
        """Number of prototypes of GSP."""
        return self.gsp.num_prototypes

    @property
    def ready(self) -> bool:
        """False while the prototypes of GSP wait for data."""
        return self.gsp.ready

    def init_from(self, features: Tensor, mask: Tensor | None = None) -> None:
        """Choose the prototypes among projected features, see ``GeneralizedSumPool.init_from``."""
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
        """Pool local features.

        Args:
            features: Projected features: tokens (B, N, D) or maps (B, D, H, W).
            mask: (B, N) bool, True where a feature is present; None: all are present.
            details: Return ``Pooled`` instead of the vectors.
            backbone: The backbone's features: tokens (B, N, C) or maps (B, C, H, W); None: ``features``.
            project: Maps vectors (B, C) to (B, D). Required with ``backbone``.

        Returns:
            Vectors (B, D) in the dtype of the features, or ``Pooled``.

        Raises:
            ValueError: If only one of ``backbone`` and ``project`` is given, or the places differ.
        """
        if (backbone is None) != (project is None):
            raise ValueError("backbone and project go together, got one of them")
        bags = precise(as_bags(features, self.dim, mask))
        backbone_bags = bags
        if backbone is not None:
            channels = backbone.shape[1 if backbone.dim() == 4 else -1]
            backbone_bags = precise(as_bags(backbone, channels, mask))
        if backbone_bags.shape[:2] != bags.shape[:2]:
            places = tuple(backbone_bags.shape[:2])
            raise ValueError(f"backbone must have the places {tuple(bags.shape[:2])}, got {places}")
        selected = self.gsp(bags, mask, details=True)
        result = self._combine(selected, backbone_bags, mask, project or nn.Identity())
        vector = result.vector.to(features.dtype)
        if details:
            return result._replace(vector=vector)
        return vector

    def _combine(self, selected: Pooled, bags: Tensor, mask: Tensor | None, project: Project) -> Pooled:
        """Combine the result of GSP with the backbone's bags (B, N, C), in fp32 or fp64."""
        raise NotImplementedError

    def _pool_beside(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        """Pool the backbone's bags. Not through ``forward``, which expects ``dim`` channels."""
        with without_autocast(bags.device):
            return self.beside._pool(bags, mask)


class MaxWithGsp(_WithGsp):
    """The projected maximum plus GSP. The weights are the mean of the weights of both.

    Takes the arguments of ``GeneralizedSumPool``.

    Examples:
        >>> import torch
        >>> MaxWithGsp(dim=8, num_prototypes=4)(torch.randn(2, 8, 3, 3)).shape
        torch.Size([2, 8])
    """

    kind = MaxPool

    def _combine(self, selected: Pooled, bags: Tensor, mask: Tensor | None, project: Project) -> Pooled:
        largest = self._pool_beside(bags, mask)
        weights = (_shares(largest.weights) + selected.weights) / 2
        return Pooled(project(largest.vector) + selected.vector, weights, selected.attributes)


class _OfWeighted(_WithGsp):
    """A pooling of the features weighted by GSP, then projected. The weights are those of this pooling."""

    def _combine(self, selected: Pooled, bags: Tensor, mask: Tensor | None, project: Project) -> Pooled:
        count = bags.shape[1] if mask is None else mask.sum(1, keepdim=True)
        result = self._pool_beside(bags * (count * selected.weights).unsqueeze(-1), mask)
        vector = project(result.vector)
        if not self.ready:  # the weights are uniform, but DDP expects a gradient for every parameter
            vector = vector + 0 * selected.vector
        return Pooled(vector, _shares(result.weights), selected.attributes)


class GemWithGsp(_OfWeighted):
    """The generalized mean of features weighted by GSP. The weights are those of GeM for the weighted features.

    Takes the arguments of ``GeneralizedSumPool``.

    Examples:
        >>> import torch
        >>> GemWithGsp(dim=8, num_prototypes=4)(torch.rand(2, 8, 3, 3)).shape
        torch.Size([2, 8])
    """

    kind = GeneralizedMeanPool


class WeightedMaxWithGsp(_OfWeighted):
    """The maximum of features weighted by GSP, as in GSP + LIBC. The weights are those of the maximum.

    Takes the arguments of ``GeneralizedSumPool``.

    Examples:
        >>> import torch
        >>> WeightedMaxWithGsp(dim=8, num_prototypes=4)(torch.rand(2, 8, 3, 3)).shape
        torch.Size([2, 8])
    """

    kind = MaxPool


def _shares(weights: Tensor) -> Tensor:
    """Weights that sum to 1: MaxPool divided by its own ``dim``, not by the number of channels it was given."""
    return weights / weights.sum(1, keepdim=True)
