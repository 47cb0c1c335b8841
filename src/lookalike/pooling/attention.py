"""Attention pooling: a weighted mean of local features, the weights being a softmax of one learnt score per place.

    weight = softmax_j(score(feature_j) / temperature)
    vector = sum_j weight_j feature_j
    score(f) = a . f,  or with a hidden layer  a . tanh(V f + b)

The plainest way to learn where to look, and so the yardstick for GSP: like GSP it stands behind the projection, in the
space of the embedding (``on_backbone`` is False), and differs from it in the weights alone. A bias of the score would
fall out of the softmax, so there is none.

Reference: the hidden layer is that of Ilse, Tomczak and Welling, "Attention-based Deep Multiple Instance Learning",
ICML 2018, who use 128 hidden units, no bias and no temperature. Ours has a bias, so that it need not turn about zero.
"""

from torch import Tensor, nn

from lookalike._util.checks import check_count, check_range
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.layers import linear, softmax_of_present


class AttentionPool(Pooling):
    """A learnt softmax over places.

    hidden: the units of a hidden layer, or None for a linear score.
    temperature: above 0; towards 0 the best place takes all, towards infinity it is average pooling.

    >>> AttentionPool(dim=8, hidden=4)
    AttentionPool(
      dim=8, hidden=4, temperature=1.0
      (inner): Linear(in_features=8, out_features=4, bias=True)
      (score): Linear(in_features=4, out_features=1, bias=False)
    )
    """

    def __init__(self, dim: int, *, hidden: int | None = None, temperature: float = 1.0) -> None:
        super().__init__(dim)
        if hidden is not None:
            check_count("hidden", hidden)
        check_range("temperature", temperature, 0, None)
        self.hidden, self.temperature = hidden, temperature
        self.inner = None if hidden is None else nn.Linear(dim, hidden)
        self.score = nn.Linear(dim if hidden is None else hidden, 1, bias=False)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, hidden={self.hidden}, temperature={self.temperature}"

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        seen = bags if self.inner is None else linear(self.inner, bags).tanh()
        weights = softmax_of_present(linear(self.score, seen).squeeze(-1) / self.temperature, mask)
        return pooled((weights.unsqueeze(1) @ bags).squeeze(1), weights)
