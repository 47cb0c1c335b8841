"""Base class of poolings that concatenate one vector per prototype.

    embedding of size m * D  =  m prototypes x local features of size D

The model first projects the local features to ``local_dim`` = D. With 8 prototypes an embedding of size 128 has D = 16;
with 64 prototypes one of size 8192 has D = 128. These are the two sizes that Gürbüz, Şener and Alatan compare
("Generalized Sum Pooling for Metric Learning", ICCV 2023).
"""

from typing import Any

import torch
from torch import Tensor

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooling, as_points

NUM_PROTOTYPES = 8  # local features of size 16 for embeddings of size 128


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
