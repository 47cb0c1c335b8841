"""The base class of poolings, and the conversion of maps and tokens to bags of local features.

``on_backbone`` says which features a pooling was designed for:

    on_backbone = False     backbone -> projection to the size of the embedding -> pooling (GSP)
    on_backbone = True      backbone -> pooling -> projection. For example, the formula needs features that are not
                            negative, as after a ReLU.
"""

from math import isqrt
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, overload, runtime_checkable

import torch
from torch import Tensor, nn

from lookalike._util.checks import check_count
from lookalike._util.tensor_checks import check_mask, require
from lookalike.pooling.autograd import precise, without_autocast


class Pooled(NamedTuple):
    """A pooled vector and where it comes from.

    Attributes:
        vector: The pooled vectors (B, out_dim), in the dtype of the features.
        weights: How much each local feature contributes (B, N), in fp32 or fp64; rows sum to 1. Shape (B, 0) if the
            pooling has no weights.
        attributes: The share of each prototype (B, m), in fp32 or fp64; rows sum to 1. Shape (B, 0) if the pooling has
            no prototypes.
    """

    vector: Tensor
    weights: Tensor
    attributes: Tensor


class Pooling(nn.Module):
    """Base class: pools local features (B, N, dim) into vectors (B, out_dim).

    A subclass implements ``_pool``, or ``_pool_map`` if it looks at neighbours. This class converts maps and tokens to
    bags, applies the mask, computes in fp32 or fp64 and casts the result back.

    Args:
        dim: Size D of the local features.
        out_dim: Size of the pooled vectors; None: ``dim``.

    Attributes:
        on_backbone: Whether the pooling was designed for the backbone's features, see above.
        needs_map: Whether it needs the positions of the features. A subclass then implements ``_pool_map``.
        sees_both: Whether ``forward`` also takes the backbone's features and the projection.
        has_weights: Whether it returns ``weights``.
        has_attributes: Whether it returns ``attributes``.
        in_unit_ball: Whether it compares features and prototypes clipped to the unit ball.
        shown: Names of the settings that ``print(layer)`` shows.
        is_weighted_sum: Whether the vector is a weighted sum over the places, see ``values``.
    """

    on_backbone: bool = False
    needs_map: bool = False
    sees_both: ClassVar[bool] = False
    has_weights: ClassVar[bool] = True
    has_attributes: ClassVar[bool] = False
    in_unit_ball: ClassVar[bool] = False
    shown: ClassVar[tuple[str, ...]] = ()
    is_weighted_sum: bool = False

    def __init__(self, dim: int, out_dim: int | None = None) -> None:
        super().__init__()
        check_count("dim", dim)
        self.dim = dim
        self.out_dim = dim if out_dim is None else out_dim

    @classmethod
    def local_dim(cls, embedding_dim: int, settings: dict[str, Any]) -> int:
        """Return the size of local features that gives embeddings of a size, for poolings after the projection.

        Args:
            embedding_dim: Size of the embedding.
            settings: Keyword arguments for the class.
        """
        del settings
        return embedding_dim

    @classmethod
    def takes_backbone(cls, settings: dict[str, Any]) -> bool:
        """Return ``on_backbone`` of an instance with these settings.

        Args:
            settings: Keyword arguments for the class.
        """
        del settings
        return cls.on_backbone

    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[True]) -> Pooled: ...
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: bool = False) -> Tensor | Pooled:
        """Pool local features, in fp32 (fp64 for fp64 features), also under autocast.

        Args:
            features: Maps (B, D, H, W) or tokens (B, N, D).
            mask: (B, N) bool, True where a feature is present; None: all are present.
            details: Return ``Pooled`` instead of the vectors.

        Returns:
            Vectors (B, out_dim) in the dtype of the features, or ``Pooled``.
        """
        bags = as_bags(features, self.dim, mask)
        with without_autocast(bags.device):
            bags = precise(bags)
            if self.needs_map:
                result = self._pool_map(bags, mask, grid_of(features))
            else:
                result = self._pool(bags, mask)
        vector = result.vector.to(features.dtype)
        if details:
            return result._replace(vector=vector)
        return vector

    @torch.no_grad()
    def explain(self, features: Tensor, mask: Tensor | None = None) -> Pooled:
        """Return ``details`` in eval mode and without gradients, for display.

        Args:
            features: Maps (B, D, H, W) or tokens (B, N, D).
            mask: (B, N) bool, True where a feature is present.

        Raises:
            ValueError: If the pooling has no weights.
        """
        if not self.has_weights:
            raise ValueError(f"{type(self).__name__} does not weigh places: there is nothing to show")
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            return self(features, mask, details=True)
        finally:
            for module, mode in modes:
                module.training = mode

    @torch.no_grad()
    def values(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the values that the weights belong to: vector = c sum_j weight_j value_j with a number c > 0.

        Args:
            features: Maps (B, D, H, W) or tokens (B, N, D).
            mask: (B, N) bool, True where a feature is present.

        Returns:
            Values (B, N, out_dim) in fp32 or fp64. They are the features themselves for most poolings.

        Raises:
            ValueError: If the pooling is not a weighted sum.
        """
        if not self.is_weighted_sum:
            raise ValueError(f"{type(self).__name__} is not a weighted sum of local features")
        bags = as_bags(features, self.dim, mask)
        grid = grid_of(features) if self.needs_map else (0, 0)
        with without_autocast(bags.device):
            return self._values(precise(bags), mask, grid)

    def extra_repr(self) -> str:
        """Return ``dim`` and the settings in ``shown``."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in ("dim", *self.shown))

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        """Pool bags (B, N, D) in fp32 or fp64. Absent features are zero."""
        raise NotImplementedError

    def _values(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Tensor:
        """Values (B, N, out_dim) of bags (B, N, D); ``grid`` only if ``needs_map``."""
        del mask, grid
        return bags

    def _pool_map(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Pooled:
        """Pool bags (B, H * W, D) of a grid (H, W), row by row."""
        raise NotImplementedError


@runtime_checkable
class StartsFromData(Protocol):
    """A pooling that can choose its prototypes among local features."""

    @property
    def num_prototypes(self) -> int:
        """Number of prototypes to choose."""

    def init_from(self, features: Tensor, mask: Tensor | None = None) -> None:
        """Choose the prototypes among local features, see ``GeneralizedSumPool.init_from``."""


def pooled(vector: Tensor, weights: Tensor | None = None, attributes: Tensor | None = None) -> Pooled:
    """Build ``Pooled``, with tensors of shape (B, 0) for missing weights and attributes."""
    empty = vector.new_zeros(vector.shape[0], 0)
    if weights is None:
        weights = empty
    if attributes is None:
        attributes = empty
    return Pooled(vector, weights, attributes)


def as_bags(features: Tensor, dim: int, mask: Tensor | None = None, *, check_finite: bool = False) -> Tensor:
    """Convert maps or tokens to bags of local features, a view if there is no mask.

    Args:
        features: Maps (B, D, H, W) or tokens (B, N, D).
        dim: The expected D.
        mask: (B, N) bool, True where a feature is present. The features of a map count row by row.
        check_finite: Check that the present features are finite.

    Returns:
        Bags (B, N, D) with absent features set to zero.

    Raises:
        TypeError: If the features are not a floating-point tensor.
        ValueError: If a shape does not match, a bag is empty or, with ``check_finite``, a value is not finite.
    """
    if not isinstance(features, Tensor):
        raise TypeError(f"features must be a tensor, got {type(features).__name__}")
    if not features.is_floating_point():
        raise TypeError(f"features must be floating point, got {features.dtype}")
    if features.dim() == 4:
        layout = "maps (B, D, H, W)"
        bags = features.flatten(2).transpose(1, 2)
    elif features.dim() == 3:
        layout = "tokens (B, N, D)"
        bags = features
    else:
        raise ValueError(f"features must be maps (B, D, H, W) or tokens (B, N, D), got {tuple(features.shape)}")
    if bags.shape[2] != dim:
        raise ValueError(f"expected {layout} with D = {dim}, got {tuple(features.shape)}")
    if bags.shape[1] == 0:
        raise ValueError(f"every bag needs at least one feature, got {tuple(features.shape)}")
    if mask is not None:
        check_mask(mask, bags.shape[:2])
        bags = bags.masked_fill(~mask.unsqueeze(-1), 0)
    if check_finite:
        require(torch.isfinite(bags).all(), "features must be finite, got NaN or infinity")
    return bags


def as_points(features: Tensor, dim: int, mask: Tensor | None, least: int) -> Tensor:
    """Collect the present local features (K, D) of points (K, D), tokens (B, N, D) or maps (B, D, H, W).

    Raises:
        ValueError: If there are fewer than ``least``, or a value is not finite.
    """
    if features.dim() == 2:
        features = features.unsqueeze(0)
    points = as_bags(features, dim, mask, check_finite=True).reshape(-1, dim)
    if mask is not None:
        points = points[mask.reshape(-1)]
    if len(points) < least:
        raise ValueError(f"{least} prototypes need at least as many features, got {len(points)}")
    return points


def grid_of(features: Tensor) -> tuple[int, int]:
    """Return (H, W) of maps, or of tokens (B, N, D) that form a square, row by row."""
    if features.dim() == 4:
        return features.shape[2], features.shape[3]
    side = isqrt(features.shape[1])
    if side * side != features.shape[1]:
        raise ValueError(
            f"this pooling looks at neighbours: give maps (B, D, H, W), or tokens of a square, got {features.shape[1]}"
        )
    return side, side
