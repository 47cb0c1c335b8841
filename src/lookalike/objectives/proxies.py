"""Proxy losses: every class has a learnt vector, its proxy. Pictures are compared with proxies only.

With cosines s_ic of picture i and the proxy of class c, and y the class of the picture:

    proxy-anchor   1/|C+| sum_{c in C+} log(1 + sum_{i: y=c} exp(-sharpness (s_ic - margin)))
                   + 1/|C| sum_c log(1 + sum_{i: y!=c} exp(sharpness (s_ic + margin)))      C+: classes in the batch
    proxy-nca      mean_i d_iy + log sum_{c != y} exp(-d_ic)             d = scale * squared distance on the sphere
    proxy-nca++    mean_i -log softmax_c(s_ic / temperature)_y

References: Kim et al., "Proxy Anchor Loss", CVPR 2020 (margin delta, sharpness alpha); Movshovitz-Attias et al., "No
Fuss Distance Metric Learning using Proxies", ICCV 2017; Teh et al., "ProxyNCA++", ECCV 2020. They are implemented here
because ProxyNCA of pytorch-metric-learning is the third with another temperature, ignores pictures whose probability
underflows, and changes the dtype of its proxies.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot

from lookalike._util.checks import check_count, check_range
from lookalike.objectives.base import Hints, Loss, Objective, check_labels
from lookalike.objectives.pairs import log_one_plus_sum_exp


class ProxyObjective(Objective):
    """Base class of the proxy losses; subclasses define the loss in ``classify``.

    Args:
        classes: Number of classes.
        dim: D.
        proxies: Number of proxies; the proxies of a class are successive rows.
        **settings: Settings of the subclass.
    """

    hints = Hints(per_class=1, rate_multiplier=100.0, warm_up=1, sharpness=0.5, needs_classes=True)

    def __init__(self, classes: int, dim: int, *, proxies: int, **settings: Any) -> None:
        check_count("classes", classes, 2)
        check_count("dim", dim)
        super().__init__(classes=classes, dim=dim, **settings)
        self.classes = classes
        self.dim = dim
        self.proxies = nn.Parameter(torch.empty(proxies, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the proxies. Only their directions matter; longer proxies turn more slowly in training."""
        with torch.no_grad():
            nn.init.normal_(self.proxies, std=0.125)

    def cosines(self, embeddings: Tensor) -> Tensor:
        """Compute the cosines (B, proxies) of embeddings (B, D) and proxies."""
        return normalize(embeddings) @ normalize(self.proxies.to(embeddings.dtype)).T

    def proxy_parameters(self) -> list[nn.Parameter]:
        """Return the vectors that stand for classes."""
        return [self.proxies]

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        del attributes, pictures  # not used
        if embeddings.shape[1] != self.dim:
            raise ValueError(f"embeddings must have {self.dim} dimensions as the proxies, got {embeddings.shape[1]}")
        check_labels(labels, self.classes)
        return self.classify(embeddings, labels)

    def classify(self, embeddings: Tensor, labels: Tensor) -> Loss:
        """Compute the loss of embeddings (B, D) with labels (B,) against the proxies."""
        raise NotImplementedError


class ProxyAnchor(ProxyObjective):
    """Proxy-Anchor loss; the formula stands at the top of this file.

    Args:
        classes: Number of classes.
        dim: D.
        margin: Margin of the cosines.
        sharpness: Scale of the exponents.
    """

    def __init__(self, classes: int, dim: int, margin: float = 0.1, sharpness: float = 32.0) -> None:
        check_range("margin", margin, -1, 1)
        check_range("sharpness", sharpness, 0, None)
        super().__init__(classes, dim, proxies=classes, margin=margin, sharpness=sharpness)
        self.margin = margin
        self.sharpness = sharpness

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")  # as the authors

    def classify(self, embeddings: Tensor, labels: Tensor) -> Loss:
        """Compute the loss of embeddings (B, D) with labels (B,) against the proxies."""
        cosines = self.cosines(embeddings)
        own = one_hot(labels, self.classes).bool()
        pull = log_one_plus_sum_exp(-self.sharpness * (cosines - self.margin), own, 0)
        push = log_one_plus_sum_exp(self.sharpness * (cosines + self.margin), ~own, 0)
        positive = pull.sum() / own.any(0).sum()
        negative = push.mean()
        return Loss(positive + negative, {"positive": positive.detach(), "negative": negative.detach()})


class ProxyNCA(ProxyObjective):
    """ProxyNCA loss; the formula stands at the top of this file.

    Args:
        classes: Number of classes.
        dim: D.
        scale: Multiplies the squared distances. Code with vectors of length 3 has scale 9.
    """

    def __init__(self, classes: int, dim: int, scale: float = 1.0) -> None:
        check_range("scale", scale, 0, None)
        super().__init__(classes, dim, proxies=classes, scale=scale)
        self.scale = scale

    def classify(self, embeddings: Tensor, labels: Tensor) -> Loss:
        """Compute the loss of embeddings (B, D) with labels (B,) against the proxies."""
        distances = self.scale * (2 - 2 * self.cosines(embeddings))
        own = one_hot(labels, self.classes).bool()
        to_own = distances.gather(1, labels.unsqueeze(1)).squeeze(1)
        to_others = torch.logsumexp((-distances).masked_fill(own, -torch.inf), 1)
        value = (to_own + to_others).mean()
        return Loss(value, {"accuracy": _accuracy(-distances, labels)})


class ProxyNCAPlusPlus(ProxyObjective):
    """ProxyNCA++ loss; the formula stands at the top of this file.

    Args:
        classes: Number of classes.
        dim: D.
        temperature: Divides the cosine. For a squared distance, 2 - 2 s, it would be twice as large.
    """

    def __init__(self, classes: int, dim: int, temperature: float = 0.11) -> None:
        check_range("temperature", temperature, 0, None)
        super().__init__(classes, dim, proxies=classes, temperature=temperature)
        self.temperature = temperature

    def classify(self, embeddings: Tensor, labels: Tensor) -> Loss:
        """Compute the loss of embeddings (B, D) with labels (B,) against the proxies."""
        logits = self.cosines(embeddings) / self.temperature
        return Loss(cross_entropy(logits, labels), {"accuracy": _accuracy(logits, labels)})


def _accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    """The share of pictures whose own proxy is the nearest."""
    return (scores.detach().argmax(1) == labels).to(scores.dtype).mean()
