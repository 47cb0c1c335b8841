"""Any pair loss between a batch and a few vectors of each class: the problem of chance-constrained programming.

    loss = l(batch, anchors) + in_batch * l(batch, batch)

The anchors stand for some pictures s of each class. There are two kinds:

    BetweenSamples   f(s), the embeddings of these pictures at this step, with gradients: equation (3.2.10). All of
                     them pass through the model at every step.
    BetweenProxies   Trained vectors that start as f(s): equation (3.2.11). They cost little more than the loss in the
                     batch.

``lookalike.training.ccp`` chooses the pictures.

Reference: Gürbüz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024. Equation numbers are those
of Gürbüz's thesis, which reports MAP@R 97.21 with proxies and 98.06 with samples on MNIST.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from lookalike._util.checks import check_count
from lookalike.geometry import clip
from lookalike.objectives.base import Hints, Loss, Objective, check_labels
from lookalike.objectives.pairs import PairObjective

Embed = Callable[[NDArray[np.int64]], Tensor]  # positions in the training set (n,) -> vectors (n, D)
INSIDE = 0.999  # largest norm at which proxies start


class BetweenAnchors(Objective):
    """Pair loss between a batch and anchors; subclasses define where the anchors are.

    Args:
        objective: A pair loss.
        classes: Number of classes.
        per_class: Anchors of each class.
        in_batch: Weight of the same loss inside the batch. The authors' code has 0.1, Algorithm 1 has 0.
    """

    anchor_labels: Tensor

    def __init__(
        self, objective: PairObjective, classes: int, per_class: int, in_batch: float, **settings: Any
    ) -> None:
        if not isinstance(objective, PairObjective):
            raise TypeError(f"proxies need a loss on pairs to be compared by, got {type(objective).__name__}")
        check_count("classes", classes)
        check_count("per_class", per_class)
        if not 0 <= in_batch < float("inf"):
            raise ValueError(f"in_batch must not be negative, got {in_batch}")
        super().__init__(classes=classes, per_class=per_class, in_batch=in_batch, **settings)
        self.objective = objective
        self.classes = classes
        self.per_class = per_class
        self.in_batch = in_batch
        self.register_buffer("anchor_labels", torch.arange(classes).repeat_interleave(per_class), persistent=False)

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        check_labels(labels, self.classes)
        anchors, same = self.anchors(pictures)
        value, parts = self.objective.pairwise(embeddings, labels, anchors, self.anchor_labels, same)
        if not self.in_batch:
            return Loss(value, parts)
        inside = self.objective(embeddings, labels, attributes, pictures).value
        return Loss(value + self.in_batch * inside, {**parts, "in batch": inside.detach()})

    def anchors(self, pictures: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the anchors of this step.

        Args:
            pictures: Positions of the batch in the training set (B,), or None.

        Returns:
            Vectors (classes * per_class, D), class by class, and a mask (B, classes * per_class), True where anchor and
            picture are the same; or None.
        """
        raise NotImplementedError

    def choose(self, places: NDArray[np.int64], vectors: Tensor) -> None:
        """Replace the anchors.

        Args:
            places: Positions of their pictures in the training set (classes, per_class).
            vectors: Embeddings of these pictures (classes, per_class, D).
        """
        raise NotImplementedError

    def solution(self, embed: Embed) -> Tensor:
        """Return a copy of the current anchors (classes * per_class, D) as the loss compares them.

        Args:
            embed: Embeds pictures of the training set.
        """
        raise NotImplementedError

    def comparable(self, vectors: Tensor) -> Tensor:
        """Return vectors (..., D) as the loss compares them: on the unit sphere if it normalises."""
        if self.objective.normalise:
            return normalize(vectors, dim=-1)
        return vectors

    def own_pictures(self, pictures: Tensor) -> Tensor | None:
        """Return a mask (anchors, n), True where an anchor is one of the pictures (n,); or None."""
        del pictures
        return None


class BetweenProxies(BetweenAnchors):
    """Pair loss between a batch and trained proxies.

    If the pair loss does not normalise, proxies are clipped to the unit ball, like CCP's embeddings. They start just
    inside the ball, because the gradient of the clip is not defined on the sphere.

    Args:
        objective: A pair loss.
        classes: Number of classes.
        dim: D.
        per_class: Proxies of each class.
        in_batch: Weight of the same loss inside the batch.
    """

    hints = Hints(needs_classes=True)

    def __init__(
        self, objective: PairObjective, classes: int, dim: int, per_class: int = 8, in_batch: float = 0.0
    ) -> None:
        check_count("dim", dim)
        super().__init__(objective, classes, per_class, in_batch, dim=dim)
        self.proxies = nn.Parameter(self._start(normalize(torch.randn(classes * per_class, dim))))

    def anchors(self, pictures: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the proxies (n, D), clipped unless the loss normalises them, and None."""
        del pictures
        if self.objective.normalise:
            return self.proxies, None
        return clip(self.proxies), None

    def proxy_parameters(self) -> list[nn.Parameter]:
        """Return the vectors that stand for classes."""
        return [self.proxies]

    def choose(self, places: NDArray[np.int64], vectors: Tensor) -> None:
        """Replace the proxies (classes, per_class, D)."""
        del places
        self.set_proxies(vectors)

    def solution(self, embed: Embed) -> Tensor:
        """Return a copy of the proxies (n, D), clipped or normalised as in the loss."""
        del embed
        return self.comparable(self.proxies.detach()).clone()

    def comparable(self, vectors: Tensor) -> Tensor:
        """Return vectors (..., D) as the loss compares them: on the sphere if it normalises, else clipped."""
        if self.objective.normalise:
            return normalize(vectors, dim=-1)
        return clip(vectors)

    @torch.no_grad()
    def set_proxies(self, vectors: Tensor) -> None:
        """Set the proxies (classes, per_class, D) in place, because an optimizer holds this Parameter."""
        self.proxies.copy_(self._start(vectors.reshape(self.proxies.shape)))

    def _start(self, vectors: Tensor) -> Tensor:
        if self.objective.normalise:
            return vectors
        norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        return vectors / (norms / INSIDE).clamp(min=1)


class BetweenSamples(BetweenAnchors):
    """Pair loss between a batch and pictures that pass through the model at every step.

    Call ``see`` with the embeddings of the pictures at ``places`` before every call. If the positions of the batch are
    given, a picture is not compared with itself. A step needs the forward and backward pass of batch + classes *
    per_class pictures. That is 26 times the batch for 32 pictures and 8 samples of each of 100 classes.

    Args:
        objective: A pair loss.
        classes: Number of classes.
        per_class: Samples of each class.
        in_batch: Weight of the same loss inside the batch.
    """

    places: Tensor  # (classes * per_class,): positions in the training set, class by class; -1 until they are chosen

    def __init__(self, objective: PairObjective, classes: int, per_class: int = 8, in_batch: float = 0.0) -> None:
        super().__init__(objective, classes, per_class, in_batch)
        self.register_buffer("places", torch.full((classes * per_class,), -1))
        self._seen: Tensor | None = None

    def see(self, vectors: Tensor) -> None:
        """Store the samples' embeddings (classes * per_class, D), with their graph, for the next call."""
        if len(vectors) != len(self.places):
            raise ValueError(f"there must be the vectors of all {len(self.places)} samples, got {len(vectors)}")
        self._seen = vectors

    def anchors(self, pictures: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the embeddings from ``see``, and a mask (B, samples) of equal pictures."""
        if self._seen is None:
            raise ValueError("the samples must be seen anew before every call: see(model(samples))")
        vectors = self._seen
        self._seen = None
        if pictures is None:
            return vectors, None
        return vectors, pictures.unsqueeze(1) == self.places

    def choose(self, places: NDArray[np.int64], vectors: Tensor) -> None:
        """Use the pictures at these positions (classes, per_class) as samples."""
        del vectors  # recomputed at every step
        self.places.copy_(torch.from_numpy(places.reshape(-1)))

    def solution(self, embed: Embed) -> Tensor:
        """Return the current embeddings (n, D) of the samples, as the loss compares them."""
        return self.comparable(embed(self.places.cpu().numpy()))

    def own_pictures(self, pictures: Tensor) -> Tensor | None:
        """Return a mask (samples, n), True where a sample is one of the pictures (n,)."""
        return self.places.unsqueeze(1) == pictures
