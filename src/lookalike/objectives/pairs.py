"""What the pair losses share: which pairs there are, how near they lie, and means over some of them.

Everything is a (B, R) matrix with masks, so that shapes do not depend on the data and a GPU need not be waited for.
A reference is another picture of the batch, a memory's, or a proxy. The same picture on both sides is never a pair.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookalike.objectives.base import Loss, Objective, check_vectors
from lookalike.pooling.autograd import precise, without_autocast


class Pairs(NamedTuple):
    """All pairs of anchors and references.

    Attributes:
        anchors: (B, D), normalised if the objective says so.
        references: (R, D), likewise.
        labels: (B,).
        reference_labels: (R,).
        positive: (B, R) bool, the labels agree and the pictures differ.
        negative: (B, R) bool, the labels differ.
    """

    anchors: Tensor  # (B, D), normalised if the objective says so
    references: Tensor  # (R, D), likewise
    labels: Tensor  # (B,)
    reference_labels: Tensor  # (R,)
    positive: Tensor  # (B, R) bool: the labels agree and the pictures differ
    negative: Tensor  # (B, R) bool: the labels differ

    @property
    def similarities(self) -> Tensor:
        """Dot products (B, R): cosines where the vectors are normalised."""
        return self.anchors @ self.references.T

    @property
    def distances(self) -> Tensor:
        """Euclidean distances (B, R), with gradient 0 where they are 0.

        Not by the expanded square: in fp32 that makes up to 1e-3 of a distance that is 0.
        """
        return torch.cdist(self.anchors, self.references, compute_mode="donot_use_mm_for_euclid_dist")


class PairObjective(Objective):
    """A loss on pairs of vectors: a subclass says in ``compare`` what it is.

    normalise: compare directions (cosine, or distance on the unit sphere); False takes the vectors as they come.
    """

    def __init__(self, *, normalise: bool, **settings: Any) -> None:
        super().__init__(**settings, normalise=normalise)
        self.normalise = normalise

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        del attributes, pictures  # pairs are of vectors; in a batch each has a place of its own
        vectors = normalize(embeddings) if self.normalise else embeddings
        same = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        return self.compare(_pair_up(vectors, labels, vectors, labels, same))

    def pairwise(
        self,
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor,
        reference_labels: Tensor,
        same: Tensor | None = None,
    ) -> Loss:
        """The loss of anchors (B, D) against references (R, D) with their labels, instead of within the batch.

        same: (B, R) bool, True where both are the same picture; such pairs are left out.
        """
        check_vectors("embeddings", embeddings, labels)
        check_vectors("references", references, reference_labels)
        if references.shape[1] != embeddings.shape[1]:
            sizes = f"{tuple(embeddings.shape)} and {tuple(references.shape)}"
            raise ValueError(f"embeddings and references must have vectors of one size, got {sizes}")
        if same is not None and (same.dtype != torch.bool or same.shape != (len(embeddings), len(references))):
            shape = f"({len(embeddings)}, {len(references)})"
            raise ValueError(f"same must be bool with the shape {shape}, got {same.dtype} {tuple(same.shape)}")
        with without_autocast(embeddings.device):
            anchors = precise(embeddings)
            references = references.to(anchors.dtype)
            if self.normalise:
                anchors, references = normalize(anchors), normalize(references)
            return self.compare(_pair_up(anchors, labels, references, reference_labels, same))

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        raise NotImplementedError


def _pair_up(
    anchors: Tensor, labels: Tensor, references: Tensor, reference_labels: Tensor, same: Tensor | None
) -> Pairs:
    agree = labels.unsqueeze(1) == reference_labels
    positive, negative = (agree, ~agree) if same is None else (agree & ~same, ~agree & ~same)
    return Pairs(anchors, references, labels, reference_labels, positive, negative)


def total(values: Tensor, chosen: Tensor) -> Tensor:
    """The sum of the chosen values; 0, but part of the graph, if there are none."""
    return torch.where(chosen, values, 0).sum()


def mean(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen values; 0, but part of the graph, if there are none."""
    return total(values, chosen) / chosen.sum().clamp(min=1)


def share(active: Tensor, of: Tensor) -> Tensor:
    """How many of the pairs take part, as a fraction."""
    return (active & of).sum() / of.sum().clamp(min=1)


def log_one_plus_sum_exp(exponents: Tensor, chosen: Tensor, dim: int) -> Tensor:
    """log(1 + sum of exp over the chosen) along ``dim``, without overflow; 0 where none is chosen."""
    exponents = exponents.masked_fill(~chosen, -torch.inf)
    one = torch.zeros_like(exponents.narrow(dim, 0, 1))
    return torch.logsumexp(torch.cat([exponents, one], dim), dim)
