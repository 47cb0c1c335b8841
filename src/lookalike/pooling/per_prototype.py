"""Poolings that give one vector per prototype, laid end to end: the size of the embedding is shared among them.

    embedding of size m * D  =  m prototypes x local features of size D

An embedding of 128 by 8 prototypes leaves 16 dimensions to the local features, one of 8192 by 64 leaves them 128:
the two sizes in which Gürbüz, Şener and Alatan ("Generalized Sum Pooling for Metric Learning", ICCV 2023) compare
such poolings. So the model projects first, to ``local_dim``.
"""

from typing import Any

import torch
from torch import Tensor

from lookalike._util.checks import check_count
from lookalike.pooling.bags import as_bags
from lookalike.pooling.base import Pooling

NUM_PROTOTYPES = 8  # as many as leave 16 of 128 dimensions


class PerPrototypePool(Pooling):
    """Local features (B, N, dim) -> vectors (B, num_prototypes * dim)."""

    has_weights = False

    def __init__(self, dim: int, num_prototypes: int) -> None:
        check_count("dim", dim)
        check_count("num_prototypes", num_prototypes)
        super().__init__(dim, num_prototypes * dim)
        self.num_prototypes = num_prototypes

    @classmethod
    def local_dim(cls, embedding_dim: int, settings: dict[str, Any]) -> int:
        """embedding_dim / num_prototypes, which must be whole."""
        count = settings.get("num_prototypes", NUM_PROTOTYPES)
        check_count("num_prototypes", count)
        if embedding_dim % count:
            raise ValueError(
                f"num_prototypes must divide the size of the embedding, {embedding_dim}, which is one vector per "
                f"prototype, got {count}"
            )
        return embedding_dim // count

    @torch.no_grad()
    def init_from(self, features: Tensor, mask: Tensor | None = None) -> None:
        """Choose the prototypes among local features (K, D), tokens (B, N, D) or maps (B, D, H, W), by greedy k-centre.

        Under DDP give every rank the same features.
        """
        features = features.unsqueeze(0) if features.dim() == 2 else features
        points = as_bags(features, self.dim, mask, check_finite=True).reshape(-1, self.dim)
        points = points if mask is None else points[mask.reshape(-1)]
        if len(points) < self.num_prototypes:
            raise ValueError(f"{self.num_prototypes} prototypes need at least as many features, got {len(points)}")
        self._start_from(points)

    def _start_from(self, points: Tensor) -> None:
        """Set the prototypes, in place, from at least as many local features (K, D)."""
        raise NotImplementedError
