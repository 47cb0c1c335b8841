"""The pooling that trains HOW: smoothed features, weighted by their norms before smoothing.

    weight_j = ||feature_j||,   ||u|| = sqrt(u . u + 1e-10)
    x_j      = mean of the features in the 3x3 window around j, as far as there are any
    vector   = sum_j weight_j x_j / sum_j weight_j

A match kernel (SMK) compares two pictures by all pairs of their local features; where it is linear, that is the inner
product of two such sums. So training the sum trains the local features, and nothing is learnt in the pooling.

Reference: Tolias, Jenicek and Chum, "Learning and Aggregating Deep Local Descriptors for Instance-Level Recognition",
ECCV 2020: window 3, trained with a contrastive loss. In their code local features are not made unit vectors when
summed, and the gradient also goes through the norms; both as here. Between smoothing and sum they reduce the features
by a whitening learnt beforehand and then fixed. A linear map goes through the sum, so the projection of the model plays
that part here; theirs also takes a mean away, ours does not, and is trained. They make the sum a unit vector, which
here the model does; what we divide by, and they do not, then falls out.

An absent place is to the smoothing what lies outside the map: it is not counted. So a map whose last rows are absent is
pooled as the smaller map is.
"""

from torch import Tensor
from torch.nn.functional import avg_pool2d

from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.layers import check_odd

SMALLEST_SQUARE = 1e-10  # of a norm: the root has a gradient also at zero


class SmkPool(Pooling):
    """The mean of smoothed features of maps (B, D, H, W), weighted by their norms.

    window: the side of the window, odd; 1 does not smooth.

    >>> SmkPool(dim=128)
    SmkPool(dim=128, window=3)
    """

    on_backbone = True
    needs_map = True

    def __init__(self, dim: int, *, window: int = 3) -> None:
        super().__init__(dim)
        check_odd("window", window)
        self.window = window

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, window={self.window}"

    def _pool_map(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Pooled:
        norms = (bags.square().sum(-1) + SMALLEST_SQUARE).sqrt()
        norms = norms if mask is None else norms * mask
        weights = norms / norms.sum(1, keepdim=True)
        return pooled((weights.unsqueeze(1) @ self._smoothed(bags, mask, grid)).squeeze(1), weights)

    def _smoothed(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Tensor:
        maps = self._window_means(bags.transpose(1, 2).unflatten(2, grid))
        if mask is not None:  # absent features are zero: all that is wrong is the number they are divided by
            present = self._window_means(mask.to(bags.dtype).unflatten(1, grid).unsqueeze(1))
            maps = maps / present.clamp(min=1 / self.window**2)
        return maps.flatten(2).transpose(1, 2)

    def _window_means(self, maps: Tensor) -> Tensor:
        return avg_pool2d(maps, self.window, stride=1, padding=self.window // 2, count_include_pad=False)
