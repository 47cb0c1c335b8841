"""Any pair loss between a batch and few vectors of each class: the problem that chance-constrained programming solves.

    loss = l(batch, anchors) + in_batch * l(batch, batch)

The anchors stand for the pictures s of a problem, some of each class. There are two kinds:

    BetweenSamples   they are f(s), what the model makes of those pictures at this very step, with gradients through
                     them as through the batch: equation (3.2.10), the problem as it is stated. The batch grows by
                     all those pictures, which is why it "is not practically applicable to large-scale problems".
    BetweenProxies   they are free vectors that began as f(s) and are learnt along with the model: (3.2.11), which
                     costs hardly more than the loss in the batch.

Every now and then somebody chooses other pictures (``lookalike.training.ccp``).

Reference: Gürbüz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024; the numbers are those of
Gürbüz's thesis, which measures 97.21 MAP@R with proxies and 98.06 with samples on MNIST.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike._util.checks import check_count
from lookalike.geometry import clip
from lookalike.objectives.base import Hints, Loss, Objective, check_labels
from lookalike.objectives.pairs import PairObjective

Embed = Callable[[NDArray[np.int64]], Tensor]  # places in the training set (n,) -> vectors (n, D)


class BetweenAnchors(Objective):
    """What both kinds share: a subclass says in ``anchors`` where the vectors are.

    objective: a pair loss.  classes: of the anchors.  per_class: how many each class has.
    in_batch: weight of the same loss inside the batch; the authors' code takes 0.1, their algorithm none.
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
        self.objective, self.classes, self.per_class, self.in_batch = objective, classes, per_class, in_batch
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
        """Vectors (classes * per_class, D), class by class; where they are pictures of the batch, (B, those) or None"""
        raise NotImplementedError

    def choose(self, places: NDArray[np.int64], vectors: Tensor) -> None:
        """Other pictures: places in the training set (classes, per_class), and their vectors (classes, per_class, D)"""
        raise NotImplementedError

    def solution(self, embed: Embed) -> Tensor:
        """A copy of the vectors as they are now (classes * per_class, D); ``embed`` gives those of pictures."""
        raise NotImplementedError


class BetweenProxies(BetweenAnchors):
    """dim: of the proxies. Where the pair loss takes vectors as they come, proxies are clipped to the unit ball as
    CCP's embeddings are. The rest as above.
    """

    hints = Hints(needs_classes=True)

    def __init__(
        self, objective: PairObjective, classes: int, dim: int, per_class: int = 8, in_batch: float = 0.0
    ) -> None:
        check_count("dim", dim)
        super().__init__(objective, classes, per_class, in_batch, dim=dim)
        self.proxies = nn.Parameter(nn.functional.normalize(torch.randn(classes * per_class, dim)))

    def anchors(self, pictures: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the anchors (n, D) of this step, and the pictures (n,) they are of."""
        del pictures  # a proxy was a picture once, and is none any more
        return (self.proxies if self.objective.normalise else clip(self.proxies)), None

    def proxy_parameters(self) -> list[nn.Parameter]:
        """Return the vectors that stand for classes."""
        return [self.proxies]

    def choose(self, places: NDArray[np.int64], vectors: Tensor) -> None:
        """Take new proxies: positions of pictures, and their vectors (n, D)."""
        del places
        self.set_proxies(vectors)

    def solution(self, embed: Embed) -> Tensor:
        """Return the vectors (n, D) of the proxies at the end of a problem."""
        del embed
        return self.proxies.detach().clone()

    @torch.no_grad()
    def set_proxies(self, vectors: Tensor) -> None:
        """New proxies (classes, per_class, D), in place: an optimiser holds this very Parameter."""
        self.proxies.copy_(vectors.reshape(self.proxies.shape))


class BetweenSamples(BetweenAnchors):
    """Before every call ``see`` must be given what the model makes of the pictures at ``places``.

    A picture is not compared with itself if the batch says which pictures it has. What a step costs: the forward and
    backward pass of batch + classes * per_class pictures instead of the batch's alone; 26 times as many for a batch
    of 32 with 8 samples of each of 100 classes.
    """

    places: Tensor  # (classes * per_class,): which pictures, class by class; -1 until they are chosen

    def __init__(self, objective: PairObjective, classes: int, per_class: int = 8, in_batch: float = 0.0) -> None:
        super().__init__(objective, classes, per_class, in_batch)
        self.register_buffer("places", torch.full((classes * per_class,), -1))
        self._seen: Tensor | None = None

    def see(self, vectors: Tensor) -> None:
        """The samples' vectors (classes * per_class, D), with their graph, for one call."""
        if len(vectors) != len(self.places):
            raise ValueError(f"there must be the vectors of all {len(self.places)} samples, got {len(vectors)}")
        self._seen = vectors

    def anchors(self, pictures: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the anchors (n, D) of this step, and the pictures (n,) they are of."""
        if self._seen is None:
            raise ValueError("the samples must be seen anew before every call: see(model(samples))")
        vectors, self._seen = self._seen, None
        return vectors, None if pictures is None else pictures.unsqueeze(1) == self.places

    def choose(self, places: NDArray[np.int64], vectors: Tensor) -> None:
        """Take new proxies: positions of pictures, and their vectors (n, D)."""
        del vectors  # they are made anew at every step
        self.places.copy_(torch.from_numpy(places.reshape(-1)))

    def solution(self, embed: Embed) -> Tensor:
        """Return the vectors (n, D) of the proxies at the end of a problem."""
        return embed(self.places.cpu().numpy())
