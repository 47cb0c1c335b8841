"""Poolings that weigh positions by a learnt score: attention, DELF and SimPool."""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize, softplus

from lookalike._util.checks import check_count, check_range
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.layers import linear, mean_of_present, softmax_of_present


class AttentionPool(Pooling):
    """A mean of local features, weighted by a softmax of one learnt score per position.

        weight = softmax_j(score(feature_j) / temperature),     vector = sum_j weight_j feature_j
        score(f) = a . f,  or with a hidden layer  a . tanh(V f + b)

    Like GSP it comes after the projection and differs from it in the weights only.

    Reference: Ilse, Tomczak and Welling, "Attention-based Deep Multiple Instance Learning", ICML 2018, with 128 hidden
    units, no temperature and no bias b.

    Args:
        dim: Size D of the local features.
        hidden: Units of the hidden layer; None: a linear score.
        temperature: Above 0. Towards 0 the best position gets all the weight, towards infinity it is average pooling.

    Examples:
        >>> AttentionPool(dim=8, hidden=4)
        AttentionPool(
          dim=8, hidden=4, temperature=1.0
          (inner): Linear(in_features=8, out_features=4, bias=True)
          (score): Linear(in_features=4, out_features=1, bias=False)
        )
    """

    shown = ("hidden", "temperature")
    is_weighted_sum = True

    def __init__(self, dim: int, *, hidden: int | None = None, temperature: float = 1.0) -> None:
        super().__init__(dim)
        check_range("temperature", temperature, 0, None)
        self.hidden, self.temperature = hidden, temperature
        self.inner: nn.Linear | None = None
        if hidden is not None:
            check_count("hidden", hidden)
            self.inner = nn.Linear(dim, hidden)
        self.score = nn.Linear(hidden or dim, 1, bias=False)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        hidden = bags
        if self.inner is not None:
            hidden = linear(self.inner, bags).tanh()
        weights = softmax_of_present(linear(self.score, hidden).squeeze(-1) / self.temperature, mask)
        return pooled((weights.unsqueeze(1) @ bags).squeeze(1), weights)


class DelfPool(Pooling):
    """DELF: a positive score per position. Unlike in a softmax, the scores do not compete.

        score_j = softplus(a . relu(V feature_j + b) + c)         two 1x1 convolutions, D -> hidden -> 1
        vector  = 1/n sum_j score_j unit(feature_j),     unit(u) = u / max(||u||, 1e-6)

    The weights are score_j / sum_i score_i.

    Reference: Noh, Araujo, Sim, Weyand and Han, "Large-Scale Image Retrieval with Attentive Deep Local Features", ICCV
    2017, with 512 hidden units. The mean, not the sum, and the unit vectors are those of their code; their formula
    sums the features as they are. Their code also has a batch norm before the ReLU, and trains the scores after the
    features.

    Args:
        dim: Size D of the local features.
        hidden: Units of the hidden layer.
        unit_features: Normalise the features before they are summed.

    Examples:
        >>> DelfPool(dim=8, hidden=4)
        DelfPool(
          dim=8, hidden=4, unit_features=True
          (inner): Linear(in_features=8, out_features=4, bias=True)
          (score): Linear(in_features=4, out_features=1, bias=True)
        )
    """

    on_backbone = True
    shown = ("hidden", "unit_features")
    is_weighted_sum = True

    def __init__(self, dim: int, *, hidden: int = 512, unit_features: bool = True) -> None:
        super().__init__(dim)
        check_count("hidden", hidden)
        self.hidden, self.unit_features = hidden, unit_features
        self.inner = nn.Linear(dim, hidden)
        self.score = nn.Linear(hidden, 1)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        scores = linear(self.score, linear(self.inner, bags).relu())
        vector = mean_of_present(softplus(scores) * self._values(bags, mask, (0, 0)), mask)
        return pooled(vector, softmax_of_present(_log_softplus(scores.squeeze(-1)), mask))

    def _values(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Tensor:
        del mask, grid
        if self.unit_features:
            return normalize(bags, dim=-1, eps=1e-6)
        return bags


class SimPool(Pooling):
    """SimPool: one step of attention with the average as the query, then a power mean.

        x_j     = LayerNorm(feature_j)
        query   = Q mean_j feature_j,     key_j = K x_j,     weight = softmax_j(query . key_j / sqrt(D))
        value_j = x_j - min x + 1e-6                         minimum over the positions and channels of the bag
        vector  = (sum_j weight_j value_j^power)^(1/power),  or without a power  sum_j weight_j x_j

    Q and K (D x D, no bias) and the LayerNorm are learnt.

    Reference: Psomas, Kakogeorgiou, Karantzalos and Avrithis, "Keep It SimPool: Who Said Supervised Transformers Suffer
    from Attention Deficit?", ICCV 2023, with power 2 for convolutional networks and 1.25 for transformers. The minimum
    of each bag follows the paper; their code takes that of the batch.

    Args:
        dim: Size D of the local features.
        power: Above 0; None: the weighted mean.

    Examples:
        >>> sum(parameter.numel() for parameter in SimPool(dim=8, power=1.25).parameters())
        144
    """

    on_backbone = True
    shown = ("power",)

    def __init__(self, dim: int, *, power: float | None = 2.0) -> None:
        super().__init__(dim)
        if power is not None:
            check_range("power", power, 0, None)
        self.power = power
        self.is_weighted_sum = power is None
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        normed = self._values(bags, mask, (0, 0))
        query = linear(self.query, mean_of_present(bags, mask)).unsqueeze(-1)
        scores = (linear(self.key, normed) @ query).squeeze(-1) * self.dim**-0.5
        log_weights = softmax_of_present(scores, mask, log=True)
        weights = log_weights.exp()
        if self.power is None:
            return pooled((weights.unsqueeze(1) @ normed).squeeze(1), weights)
        # In logarithms: a power of a value near 1e-6 leaves the range of fp32, and its root has no gradient.
        terms = log_weights.unsqueeze(-1) + self.power * _above_minimum(normed, mask).log()
        return pooled((terms.logsumexp(1) / self.power).exp(), weights)

    def _values(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Tensor:
        del mask, grid
        scale, shift = self.norm.weight.to(bags.dtype), self.norm.bias.to(bags.dtype)
        return layer_norm(bags, (self.dim,), scale, shift, self.norm.eps)


def _log_softplus(scores: Tensor) -> Tensor:
    """log(log(1 + exp(score))), also where the softplus underflows; there it is exp(score)."""
    return torch.where(scores < -30, scores, softplus(scores.clamp(min=-30)).log())


def _above_minimum(values: Tensor, mask: Tensor | None) -> Tensor:
    """Values (B, N, D) minus the smallest present one of each bag plus 1e-6; 1 where absent."""
    if mask is None:
        return values - values.amin((1, 2), keepdim=True) + 1e-6
    absent = ~mask.unsqueeze(-1)
    smallest = values.masked_fill(absent, torch.inf).amin((1, 2), keepdim=True)
    return (values - smallest + 1e-6).masked_fill(absent, 1)
