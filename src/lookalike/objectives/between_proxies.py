"""Any pair loss between a batch and proxies: the problem that chance-constrained programming solves again and again.

    loss = l(batch, proxies) + in_batch * l(batch, batch)

The proxies are ordinary vectors of the embedding space, some for each class. They are learnt along with the model, and
every now and then somebody sets them anew to the embeddings of pictures (``lookalike.training.ccp``).

Reference: Gürbüz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024.
"""

import torch
from torch import Tensor, nn

from lookalike.checks import check_count
from lookalike.geometry import clip
from lookalike.objectives.base import Hints, Loss, Objective, check_labels
from lookalike.objectives.pairs import PairObjective


class BetweenProxies(Objective):
    """objective: a pair loss.  classes, dim: of the proxies.  per_class: how many each class has.

    in_batch: weight of the same loss inside the batch; the authors' code takes 0.1, their algorithm none.
    Where the pair loss takes vectors as they come, proxies are clipped to the unit ball as CCP's embeddings are.
    """

    hints = Hints(needs_classes=True)

    def __init__(
        self, objective: PairObjective, classes: int, dim: int, per_class: int = 8, in_batch: float = 0.0
    ) -> None:
        if not isinstance(objective, PairObjective):
            raise TypeError(f"proxies need a loss on pairs to be compared by, got {type(objective).__name__}")
        check_count("classes", classes)
        check_count("dim", dim)
        check_count("per_class", per_class)
        if not 0 <= in_batch < float("inf"):
            raise ValueError(f"in_batch must not be negative, got {in_batch}")
        super().__init__(classes=classes, dim=dim, per_class=per_class, in_batch=in_batch)
        self.objective, self.classes, self.per_class, self.in_batch = objective, classes, per_class, in_batch
        self.proxies = nn.Parameter(nn.functional.normalize(torch.randn(classes * per_class, dim)))
        self.proxy_labels: Tensor
        self.register_buffer("proxy_labels", torch.arange(classes).repeat_interleave(per_class), persistent=False)

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        check_labels(labels, self.classes)
        proxies = self.proxies if self.objective.normalise else clip(self.proxies)
        value, parts = self.objective.pairwise(embeddings, labels, proxies, self.proxy_labels)
        if not self.in_batch:
            return Loss(value, parts)
        inside = self.objective(embeddings, labels, attributes, pictures).value
        return Loss(value + self.in_batch * inside, {**parts, "in batch": inside.detach()})

    def proxy_parameters(self) -> list[nn.Parameter]:
        return [self.proxies]

    @torch.no_grad()
    def set_proxies(self, vectors: Tensor) -> None:
        """New proxies (classes, per_class, D), in place: an optimiser holds this very Parameter."""
        self.proxies.copy_(vectors.reshape(self.proxies.shape))
