"""GSoP's pooling: which channels count is read off the covariance of the channels; then the average.

    z_j   = relu(norm(R relu(feature_j) + r))                 1x1 convolution, D -> d
    cov   = 1/n sum_j (z_j - mean z)(z_j - mean z)^T          (d, d)
    s_i   = W_i row_norm(cov)_i + w_i                         row by row with weights of its own, d -> 4
    gates = sigmoid(E s + e)                                  4 d -> D
    vector = gates * 1/n sum_j feature_j

Reference: Gao, Xie, Wang and Li, "Global Second-Order Pooling Convolutional Networks", CVPR 2019; d = 128. The paper
has a block for channels, one for positions, and ways to join them, all meant to stand within a network. This is the
block for channels, the default of their code, as it stands in their GSoP-Net1 before the average at the end. Not here:
the block for positions, which shrinks every map to 8 x 8 and learns a gate for each of these 64, so that it knows
places by their coordinates; and the matrix square root at the end of GSoP-Net2, which is a pooling of another kind.

Layers are those of their code: biases throughout, batch norms after the reduction (present places only) and on the rows
of the covariance, no activation behind the rows, weights drawn by He's rule for outgoing connections. The first ReLU
does nothing to features that come from one.

It does not weigh places, so there are no ``weights``. A bag of one feature has the covariance zero.
"""

from torch import Tensor, nn
from torch.nn.functional import conv1d

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.layers import PresentBatchNorm, linear, mean_of_present

PER_ROW = 4  # numbers that each row of the covariance is reduced to


class GsopPool(Pooling):
    """The average with gates on its channels.

    reduced: d, the channels whose covariance is taken.

    >>> pool = GsopPool(dim=16, reduced=4)
    >>> sum(parameter.numel() for parameter in pool.parameters())
    436
    """

    on_backbone = True
    has_weights = False

    def __init__(self, dim: int, *, reduced: int = 128) -> None:
        super().__init__(dim)
        check_count("reduced", reduced)
        self.reduced = reduced
        self.reduce = nn.Linear(dim, reduced)
        self.norm = PresentBatchNorm(reduced)
        self.row_norm = PresentBatchNorm(reduced)
        self.rows = nn.Conv1d(reduced, PER_ROW * reduced, kernel_size=reduced, groups=reduced)
        self.expand = nn.Linear(PER_ROW * reduced, dim)
        for layer in (self.reduce, self.rows, self.expand):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reduced={self.reduced}"

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        seen = self.norm(linear(self.reduce, bags.relu()), mask).relu()
        rows = self.row_norm(covariance(seen, mask)).transpose(1, 2)  # symmetric before: its columns were the rows
        kind = rows.dtype
        bias = None if self.rows.bias is None else self.rows.bias.to(kind)
        numbers = conv1d(rows, self.rows.weight.to(kind), bias, groups=self.reduced).squeeze(-1)
        return pooled(linear(self.expand, numbers).sigmoid() * mean_of_present(bags, mask))


def covariance(values: Tensor, mask: Tensor | None) -> Tensor:
    """Of the present rows of values (B, N, d), divided by their number -> (B, d, d)."""
    centred = values - mean_of_present(values, mask).unsqueeze(1)
    if mask is None:
        return centred.transpose(1, 2) @ centred / values.shape[1]
    centred = centred.masked_fill(~mask.unsqueeze(-1), 0)
    return centred.transpose(1, 2) @ centred / mask.sum(1)[:, None, None]
