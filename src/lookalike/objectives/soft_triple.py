"""SoftTriple loss: a softmax over classes with several centres each. Superfluous centres merge.

    s_ic = sum_k softmax_k(x_i . w_ck / gamma) (x_i . w_ck)
    mean_i -log softmax_c(scale (s_ic - margin [c = y]))_y
    + merge / (C K (K - 1)) * sum_c sum_{k < l} sqrt(2 - 2 w_ck . w_cl)

Vectors and centres lie on the unit sphere. A large gamma averages the centres of a class, a small gamma selects the
nearest. Reference: Qian et al., "SoftTriple Loss", ICCV 2019, with (lambda, gamma, tau, delta) = (scale, gamma, merge,
margin).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot

from lookalike._util.checks import check_count, check_range
from lookalike.objectives.base import Loss
from lookalike.objectives.proxies import ProxyObjective

SMALLEST = 1e-5  # added under the root, as in the authors' code, because the root of 0 has no gradient


class SoftTriple(ProxyObjective):
    """SoftTriple loss; the formula stands at the top of this file.

    Args:
        classes: Number of classes.
        dim: D.
        scale: lambda in the paper.
        gamma: Temperature over the centres of a class.
        merge: tau in the paper, weight of the distances between the centres of a class.
        margin: delta in the paper.
        centres_per_class: Number of centres of each class.
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        scale: float = 20.0,
        gamma: float = 0.1,
        merge: float = 0.2,
        margin: float = 0.01,
        centres_per_class: int = 10,
    ) -> None:
        check_range("scale", scale, 0, None)
        check_range("gamma", gamma, 0, None)
        if merge < 0:
            raise ValueError(f"merge must be at least 0, got {merge}")
        check_count("centres_per_class", centres_per_class)
        super().__init__(
            classes,
            dim,
            proxies=classes * centres_per_class,
            scale=scale,
            gamma=gamma,
            merge=merge,
            margin=margin,
            centres_per_class=centres_per_class,
        )
        self.scale = scale
        self.gamma = gamma
        self.merge = merge
        self.margin = margin
        self.centres_per_class = centres_per_class

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        bound = len(self.proxies) ** -0.5  # as the authors
        nn.init.uniform_(self.proxies, -bound, bound)

    def classify(self, embeddings: Tensor, labels: Tensor) -> Loss:
        """Compute the loss of embeddings (B, D) with labels (B,) against the proxies."""
        cosines = self.cosines(embeddings).unflatten(1, (self.classes, self.centres_per_class))
        similarities = (torch.softmax(cosines / self.gamma, 2) * cosines).sum(2)
        margins = self.margin * one_hot(labels, self.classes).to(similarities.dtype)
        logits = self.scale * (similarities - margins)
        softmax = cross_entropy(logits, labels)
        spread = self._spread(embeddings.dtype)
        accuracy = (similarities.detach().argmax(1) == labels).to(embeddings.dtype).mean()
        parts = {"softmax": softmax.detach(), "spread": spread.detach(), "accuracy": accuracy}
        return Loss(softmax + self.merge * spread, parts)

    def _spread(self, dtype: torch.dtype) -> Tensor:
        """Half the mean distance between the centres of a class.

        Computed class by class, because a matrix of all C^2 K^2 products would be too large for SOP.
        """
        count = self.centres_per_class
        if count == 1:
            return self.proxies.new_zeros((), dtype=dtype)
        centres = normalize(self.proxies.to(dtype)).unflatten(0, (self.classes, count))
        row, column = torch.triu_indices(count, count, 1, device=centres.device)
        products = (centres @ centres.mT)[:, row, column]
        return (2 + SMALLEST - 2 * products).sqrt().sum() / (self.classes * count * (count - 1))
