"""CBAM's pooling: gates for the channels, then gates for the places, then the average.

    channels = sigmoid(mlp(mean_j feature_j) + mlp(max_j feature_j)),   mlp(u) = V relu(U u + b) + c,  D -> D/16 -> D
    x_j      = channels * feature_j
    places   = sigmoid(norm(convolution of the two maps  max_d x_jd  and  mean_d x_jd)),   7x7, no bias
    vector   = 1/n sum_j places_j x_j

``weights`` are the shares of the places: places_j / sum_i places_i.

Reference: Woo, Park, Lee and Kweon, "CBAM: Convolutional Block Attention Module", ECCV 2018: reduction 16, kernel 7.
Theirs is a block between the layers of a network; at its end, global average pooling follows. The paper leaves biases
and batch norm open. As in their code, the layers of the MLP have biases, and a batch norm with momentum 0.01 stands
behind the convolution, which has none; it sees present places only.

An absent place is to the convolution what lies outside the map: zero. So a map whose last rows are absent is pooled as
the smaller map is.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, logsigmoid

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.layers import PresentBatchNorm, check_odd, linear, mean_of_present, softmax_of_present


class CbamPool(Pooling):
    """Gated channels and places of maps (B, D, H, W), averaged.

    reduction: the MLP has D / reduction hidden units, at least 1.  kernel: the side of the convolution, odd.

    >>> CbamPool(dim=32)(torch.rand(2, 32, 5, 7)).shape
    torch.Size([2, 32])
    """

    on_backbone = True
    needs_map = True

    def __init__(self, dim: int, *, reduction: int = 16, kernel: int = 7) -> None:
        super().__init__(dim)
        check_count("reduction", reduction)
        check_odd("kernel", kernel)
        self.reduction, self.kernel = reduction, kernel
        hidden = max(1, dim // reduction)
        self.inner, self.outer = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.convolution = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False)
        self.norm = PresentBatchNorm(1, momentum=0.01)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reduction={self.reduction}, kernel={self.kernel}"

    def _pool_map(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Pooled:
        refined = bags * self._channel_gates(bags, mask).unsqueeze(1)
        maps = torch.stack((refined.amax(-1), refined.mean(-1)), 1).unflatten(2, grid)
        scores = conv2d(maps, self.convolution.weight.to(maps.dtype), padding=self.kernel // 2).flatten(1)
        scores = self.norm(scores.unsqueeze(-1), mask)
        vector = mean_of_present(refined * scores.sigmoid(), mask)
        return pooled(vector, softmax_of_present(logsigmoid(scores).squeeze(-1), mask))

    def _channel_gates(self, bags: Tensor, mask: Tensor | None) -> Tensor:
        largest = bags if mask is None else bags.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        seen = torch.stack((mean_of_present(bags, mask), largest.amax(1)), 1)
        return linear(self.outer, linear(self.inner, seen).relu()).sum(1).sigmoid()
