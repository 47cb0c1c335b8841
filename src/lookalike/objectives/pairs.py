"""Base class of the pair losses, the pairs of a batch, and means over selected pairs.

Pairs are (B, R) matrices with masks. Their shapes do not depend on the data, so nothing waits for a GPU. A reference is
another picture of the batch, an entry of a memory, or a proxy. A picture is not paired with itself.
"""

import math
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
        positive: (B, R) bool, True where the labels agree and the pictures differ.
        negative: (B, R) bool, True where the labels differ.
    """

    anchors: Tensor
    references: Tensor
    labels: Tensor
    reference_labels: Tensor
    positive: Tensor
    negative: Tensor

    @property
    def similarities(self) -> Tensor:
        """Dot products (B, R): cosines where the vectors are normalised."""
        return self.anchors @ self.references.T

    @property
    def distances(self) -> Tensor:
        """Euclidean distances (B, R), with gradient 0 where they are 0.

        The expanded square is not used: in fp32 it gives up to 1e-3 for a distance of 0.
        """
        return torch.cdist(self.anchors, self.references, compute_mode="donot_use_mm_for_euclid_dist")


class PairObjective(Objective):
    """A loss on pairs of vectors; subclasses define it in ``compare``.

    Args:
        normalise: Project vectors onto the unit sphere; False: compare them as they are.
        **settings: Settings of the subclass.
    """

    def __init__(self, *, normalise: bool, **settings: Any) -> None:
        super().__init__(**settings, normalise=normalise)
        self.normalise = normalise

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        del attributes, pictures  # not used
        vectors = embeddings
        if self.normalise:
            vectors = normalize(embeddings)
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
        """Compute the loss of anchors against references, instead of within the batch.

        Args:
            embeddings: Anchors (B, D).
            labels: Their classes (B,).
            references: (R, D).
            reference_labels: Their classes (R,).
            same: (B, R) bool, True where both are the same picture; such pairs are left out.

        Returns:
            The loss and its parts.
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
                anchors = normalize(anchors)
                references = normalize(references)
            return self.compare(_pair_up(anchors, labels, references, reference_labels, same))

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        raise NotImplementedError

    def boundary(self) -> tuple[float, float]:
        """Return beta and alpha of the generalized contrastive loss max(0, +-(d - beta) + alpha) closest to this loss.

        Positives are pulled below beta - alpha, and negatives are pushed beyond beta + alpha. alpha is above 0. A loss
        without margins for single pairs has those of C1: positives are pulled to 0, and negatives pushed to 1.
        """
        return halfway(0.0, 1.0)


def _pair_up(
    anchors: Tensor, labels: Tensor, references: Tensor, reference_labels: Tensor, same: Tensor | None
) -> Pairs:
    positive = labels.unsqueeze(1) == reference_labels
    negative = ~positive
    if same is not None:
        positive = positive & ~same
        negative = negative & ~same
    return Pairs(anchors, references, labels, reference_labels, positive, negative)


def halfway(positive_margin: float, negative_margin: float) -> tuple[float, float]:
    """Return the middle of two distances and half of their difference; those of 0 and 1 if the first is not smaller."""
    if positive_margin >= negative_margin:
        return 0.5, 0.5
    return (negative_margin + positive_margin) / 2, (negative_margin - positive_margin) / 2


def chord(cosine: float) -> float:
    """Return the distance of two unit vectors with this cosine."""
    return math.sqrt(max(0.0, 2 - 2 * cosine))


def total(values: Tensor, chosen: Tensor) -> Tensor:
    """Sum the chosen values; without any, 0 as part of the graph."""
    return torch.where(chosen, values, 0).sum()


def mean(values: Tensor, chosen: Tensor) -> Tensor:
    """Average the chosen values; without any, 0 as part of the graph."""
    return total(values, chosen) / chosen.sum().clamp(min=1)


def share(active: Tensor, of: Tensor) -> Tensor:
    """Return the share of the pairs that are active."""
    return (active & of).sum() / of.sum().clamp(min=1)


def log_one_plus_sum_exp(exponents: Tensor, chosen: Tensor, dim: int) -> Tensor:
    """Compute log(1 + sum of exp over the chosen) along ``dim``, without overflow; 0 where none is chosen."""
    exponents = exponents.masked_fill(~chosen, -torch.inf)
    one = torch.zeros_like(exponents.narrow(dim, 0, 1))
    return torch.logsumexp(torch.cat([exponents, one], dim), dim)
