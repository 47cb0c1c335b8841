"""Losses for training on marks: pairs of pictures that people have marked as same or different.

    MarkedPairs        a pair loss on the marked pairs, whatever the labels are
    Labelled           any objective on the pictures of a batch that have a label (from 0; -1: no label)
    KeptSimilarities   mean over pairs (i, j) of unmarked pictures of (cos(v_i, v_j) - cos(u_i, u_j))^2,
                       where u are the vectors before training

KeptSimilarities protects unmarked pictures, about which a few hundred marks say little. In one run without this term,
100 and 400 marks on half of the first 100 classes of CUB cost the other half 5.9 and 11.0 points of MAP@R; with it, 0.3
and 0.1.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookalike.objectives.base import Loss, Objective
from lookalike.objectives.pairs import PairObjective, Pairs, mean


class MarkedPairs(Objective):
    """A pair loss on marked pairs.

    Args:
        loss: The pair loss.
        pictures: Positions of the marked pictures in the training set (M,).
        relation: (M, M) int8, symmetric: 1 same, -1 different, 0 unknown or the same picture.

    Examples:
        >>> from lookalike.objectives import create
        >>> relation = torch.tensor([[0, 1], [1, 0]], dtype=torch.int8)
        >>> marked = MarkedPairs(create("c2"), torch.tensor([7, 3]), relation)
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> marked(vectors, torch.tensor([-1, -1, -1]), None, torch.tensor([3, 7, 5])).value
        tensor(1.4142)
    """

    pictures: Tensor
    relation: Tensor

    def __init__(self, loss: PairObjective, pictures: Tensor, relation: Tensor) -> None:
        super().__init__()
        if relation.dtype != torch.int8 or relation.shape != (len(pictures), len(pictures)):
            shape = (len(pictures), len(pictures))
            raise ValueError(f"relation must be int8 with the shape {shape}, got {relation.dtype} {relation.shape}")
        self.loss = loss
        order = pictures.argsort()
        self.register_buffer("pictures", pictures[order])
        self.register_buffer("relation", relation[order][:, order])

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        del attributes
        is_marked, places = self.find(pictures)
        if not len(places):
            return _no_loss(embeddings)
        relation = self.relation[places][:, places]
        vectors = embeddings[is_marked]
        if self.loss.normalise:
            vectors = normalize(vectors)
        marked_labels = labels[is_marked]
        return self.loss.compare(Pairs(vectors, vectors, marked_labels, marked_labels, relation == 1, relation == -1))

    def find(self, pictures: Tensor | None) -> tuple[Tensor, Tensor]:
        """Find the marked pictures of a batch.

        Args:
            pictures: Positions of the batch in the training set (B,).

        Returns:
            A mask (B,), and the indices of the marked pictures in ``self.pictures``.

        Raises:
            ValueError: If ``pictures`` is None.
        """
        if pictures is None:
            raise ValueError("marked pairs need the positions of the pictures of a batch, got none")
        last = max(0, len(self.pictures) - 1)
        places = torch.searchsorted(self.pictures, pictures).clamp(max=last)
        is_marked = self.pictures[places] == pictures
        return is_marked, places[is_marked]


class Labelled(Objective):
    """An objective on the pictures of a batch that have a label.

    Args:
        loss: The objective.
    """

    def __init__(self, loss: Objective) -> None:
        super().__init__()
        self.loss = loss
        self.needs_attributes = loss.needs_attributes
        self.needs_raw = loss.needs_raw

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        has_label = labels >= 0
        if not has_label.any():
            return _no_loss(embeddings)
        if attributes is not None:
            attributes = attributes[has_label]
        if pictures is not None:
            pictures = pictures[has_label]
        loss: Loss = self.loss(embeddings[has_label], labels[has_label], attributes, pictures)
        return loss


class KeptSimilarities(Objective):
    """Keeps the cosines between unmarked pictures as they were before training.

    Args:
        start: Vectors of all training pictures before training (n, D').
        marked: Positions of the marked pictures (M,), whose cosines may change.
    """

    start: Tensor
    is_free: Tensor

    def __init__(self, start: Tensor, marked: Tensor) -> None:
        super().__init__()
        is_free = torch.zeros(len(start), dtype=torch.bool)
        is_free[marked] = True
        self.register_buffer("start", normalize(start.float()), persistent=False)
        self.register_buffer("is_free", is_free, persistent=False)

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        del labels, attributes
        if pictures is None:
            raise ValueError("kept similarities need the positions of the pictures of a batch, got none")
        is_kept = ~self.is_free[pictures]
        vectors = normalize(embeddings[is_kept])
        start = self.start[pictures[is_kept]].to(vectors.dtype)
        changes = (vectors @ vectors.T - start @ start.T).square()
        return Loss(mean(changes, torch.ones_like(changes, dtype=torch.bool)), {})


def _no_loss(embeddings: Tensor) -> Loss:
    """A loss of 0 that is part of the graph."""
    return Loss(0 * embeddings.sum(), {})
