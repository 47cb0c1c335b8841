"""What every pooling is: a module that turns a bag of local features into one vector, and can say how.

A subclass writes ``_pool``. The door (maps or tokens, mask), fp32 inside and also under autocast, the cast back and
``details`` are here.

Where a pooling stands in a model is the model's business, but a pooling says what it was made for:

    on_backbone = False     backbone -> projection to the size of the embedding -> pooling (GSP)
    on_backbone = True      backbone -> pooling -> projection: the formula lives on the backbone's own channels, which
                            are not negative after a ReLU, for instance, or are too many to be learnt on otherwise
"""

from math import isqrt
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, overload, runtime_checkable

import torch
from torch import Tensor, nn

from lookalike._util.checks import check_count
from lookalike.pooling.bags import as_bags
from lookalike.pooling.kernel import without_autocast


class Pooled(NamedTuple):
    """What a pooling saw. ``weights`` and ``attributes`` come in fp32 or better, and empty where there are none."""

    vector: Tensor  # (B, D)
    weights: Tensor  # (B, N), rows sum to 1
    attributes: Tensor  # (B, m), rows sum to 1: the share of each prototype


class Pooling(nn.Module):
    """Local features (B, N, dim) -> vectors (B, out_dim)."""

    on_backbone: ClassVar[bool] = False
    needs_map: ClassVar[bool] = False  # looks at neighbours: a subclass writes ``_pool_map``
    sees_both: ClassVar[bool] = False  # ``forward`` also takes the backbone's features and the projection, see ``Head``
    has_weights: ClassVar[bool] = True
    has_attributes: ClassVar[bool] = False
    in_unit_ball: ClassVar[bool] = False  # where prototypes live and features are clipped to

    def __init__(self, dim: int, out_dim: int | None = None) -> None:
        super().__init__()
        check_count("dim", dim)
        self.dim = dim
        self.out_dim = dim if out_dim is None else out_dim

    @classmethod
    def local_dim(cls, embedding_dim: int, settings: dict[str, Any]) -> int:
        """The size that local features are to be projected to for embeddings of that size, if not on_backbone."""
        del settings
        return embedding_dim

    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[True]) -> Pooled: ...
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: bool = False) -> Tensor | Pooled:
        """Maps (B, D, H, W) or tokens (B, N, D), mask (B, N) True where present -> (B, out_dim), or ``Pooled``.

        Computed in fp32 (fp64 for fp64 features), also under autocast; the vector is cast back.
        """
        bags = as_bags(features, self.dim, mask)
        with without_autocast(bags.device):
            bags = bags if bags.dtype == torch.float64 else bags.float()
            result = self._pool_map(bags, mask, grid_of(features)) if self.needs_map else self._pool(bags, mask)
        vector = result.vector.to(features.dtype)
        return result._replace(vector=vector) if details else vector

    @torch.no_grad()
    def explain(self, features: Tensor, mask: Tensor | None = None) -> Pooled:
        """What the pooling sees, for people: ``details`` in eval mode and without gradients."""
        if not self.has_weights:
            raise ValueError(f"{type(self).__name__} does not weigh places: there is nothing to show")
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            return self(features, mask, details=True)
        finally:
            for module, mode in modes:
                module.training = mode

    def extra_repr(self) -> str:
        return f"dim={self.dim}"

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        """Bags (B, N, D), zero where absent, in fp32 or fp64."""
        raise NotImplementedError

    def _pool_map(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Pooled:
        """The same where needs_map, and the grid (H, W) of which the N places are the rows."""
        raise NotImplementedError


@runtime_checkable
class StartsFromData(Protocol):
    """A pooling whose prototypes can be chosen among features."""

    @property
    def num_prototypes(self) -> int: ...
    def init_from(self, features: Tensor, mask: Tensor | None = None) -> None: ...


def pooled(vector: Tensor, weights: Tensor | None = None, attributes: Tensor | None = None) -> Pooled:
    """``Pooled``, with nothing where there are no weights or attributes."""
    nothing = vector.new_zeros(vector.shape[0], 0)
    return Pooled(vector, nothing if weights is None else weights, nothing if attributes is None else attributes)


def grid_of(features: Tensor) -> tuple[int, int]:
    """(H, W) of maps; tokens (B, N, D) must be a square, row by row."""
    if features.dim() == 4:
        return features.shape[2], features.shape[3]
    side = isqrt(features.shape[1])
    if side * side != features.shape[1]:
        raise ValueError(
            f"this pooling looks at neighbours: give maps (B, D, H, W), or tokens of a square, got {features.shape[1]}"
        )
    return side, side
