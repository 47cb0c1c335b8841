"""Attention blocks of known networks as poolings: CBAM, GSoP and SOLAR. Each refines the features before a mean."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, conv1d, conv2d, interpolate, logsigmoid

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.layers import PresentBatchNorm, check_odd, linear, mean_of_present, softmax_of_present
from lookalike.pooling.per_channel import GeneralizedMeanPool

PER_ROW = 4  # outputs of GSoP per row of the covariance


class CbamPool(Pooling):
    """CBAM: gates for the channels, then gates for the positions, then the average.

        channels  = sigmoid(mlp(mean_j feature_j) + mlp(max_j feature_j)),  mlp(u) = V relu(U u + b) + c, D -> D/16 -> D
        x_j       = channels * feature_j
        positions = sigmoid(norm(convolution of the two maps  max_d x_jd  and  mean_d x_jd)),  7x7, no bias
        vector    = 1/n sum_j positions_j x_j

    The weights are positions_j / sum_i positions_i. Absent features count as padding: a map whose last rows are absent
    gives the same vector as the smaller map.

    Reference: Woo, Park, Lee and Kweon, "CBAM: Convolutional Block Attention Module", ECCV 2018. Biases and the batch
    norm with momentum 0.01 are those of their code.

    Args:
        dim: Size D of the local features.
        reduction: The MLP has D / reduction hidden units, at least 1.
        kernel: Side of the convolution, odd.

    Examples:
        >>> CbamPool(dim=32)(torch.rand(2, 32, 5, 7)).shape
        torch.Size([2, 32])
    """

    on_backbone = True
    needs_map = True
    shown = ("reduction", "kernel")
    is_weighted_sum = True

    def __init__(self, dim: int, *, reduction: int = 16, kernel: int = 7) -> None:
        super().__init__(dim)
        check_count("reduction", reduction)
        check_odd("kernel", kernel)
        self.reduction, self.kernel = reduction, kernel
        hidden = max(1, dim // reduction)
        self.inner, self.outer = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.convolution = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False)
        self.norm = PresentBatchNorm(1, momentum=0.01)

    def _pool_map(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Pooled:
        refined = self._values(bags, mask, grid)
        maps = torch.stack((refined.amax(-1), refined.mean(-1)), 1).unflatten(2, grid)
        scores = conv2d(maps, self.convolution.weight.to(maps.dtype), padding=self.kernel // 2).flatten(1)
        scores = self.norm(scores.unsqueeze(-1), mask)
        vector = mean_of_present(refined * scores.sigmoid(), mask)
        return pooled(vector, softmax_of_present(logsigmoid(scores).squeeze(-1), mask))

    def _values(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Tensor:
        del grid
        return bags * self._channel_gates(bags, mask).unsqueeze(1)

    def _channel_gates(self, bags: Tensor, mask: Tensor | None) -> Tensor:
        mean = mean_of_present(bags, mask)
        if mask is not None:
            bags = bags.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        summaries = torch.stack((mean, bags.amax(1)), 1)
        return linear(self.outer, linear(self.inner, summaries).relu()).sum(1).sigmoid()


class GsopPool(Pooling):
    """GSoP: the average, with channel gates computed from the covariance of the channels. It has no weights.

        z_j   = relu(norm(R relu(feature_j) + r))                 1x1 convolution, D -> d
        cov   = 1/n sum_j (z_j - mean z)(z_j - mean z)^T          (d, d)
        s_i   = W_i row_norm(cov)_i + w_i                         separate weights for each row, d -> 4
        gates = sigmoid(E s + e)                                  4 d -> D
        vector = gates * 1/n sum_j feature_j

    With ``spatial`` there are also gates for the positions, from the covariance of the positions of a map of
    side x side over the d channels, with layers of their own and a relu around s. The larger of both counts:

        vector = 1/n sum_j max(gates * feature_j, position_gate_j * relu(feature_j))

    A map of another size is averaged to side x side, and each gate is used for the positions nearest to it.

    Reference: Gao, Xie, Wang and Li, "Global Second-Order Pooling Convolutional Networks", CVPR 2019, with d = 128 and
    side 8. This is the channel block of their code, as in GSoP-Net1 before the last average, with its biases, batch
    norms and initialisation. "Generalized Sum Pooling for Metric Learning" (ICCV 2023) compares with both blocks
    fused by the maximum, after the projection, on the whole map, and with second moments in place of the covariance.

    Args:
        dim: Size D of the local features.
        reduced: The number d of channels in the covariance.
        spatial: Add the gates for the positions. The pooling then comes after the projection and takes no mask.
        side: Side of the map whose positions get gates.
        centred: Subtract the mean for the covariance; else the second moments 1/n sum_j z_j z_j^T take its place.

    Examples:
        >>> pool = GsopPool(dim=16, reduced=4)
        >>> sum(parameter.numel() for parameter in pool.parameters())
        436
    """

    on_backbone = True
    has_weights = False
    shown = ("reduced", "spatial", "side", "centred")

    def __init__(
        self, dim: int, *, reduced: int = 128, spatial: bool = False, side: int = 8, centred: bool = True
    ) -> None:
        super().__init__(dim)
        check_count("reduced", reduced)
        check_count("side", side)
        self.reduced, self.spatial, self.side, self.centred = reduced, spatial, side, centred
        self.on_backbone, self.needs_map = not spatial, spatial
        self.reduce = nn.Linear(dim, reduced)
        self.norm = PresentBatchNorm(reduced)
        self.row_norm, self.rows, self.expand = _gate_layers(reduced, dim)
        layers: list[nn.Linear | nn.Conv1d] = [self.reduce, self.rows, self.expand]
        if spatial:
            self.spatial_reduce = nn.Linear(dim, reduced)
            self.spatial_norm = PresentBatchNorm(reduced)
            self.spatial_row_norm, self.spatial_rows, self.spatial_expand = _gate_layers(side * side, side * side)
            layers += [self.spatial_reduce, self.spatial_rows, self.spatial_expand]
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    @classmethod
    def takes_backbone(cls, settings: dict[str, Any]) -> bool:
        """Return whether there are no gates for the positions.

        Args:
            settings: Keyword arguments for the class.
        """
        return not settings.get("spatial", False)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        return pooled(self._channel_gates(bags, mask) * mean_of_present(bags, mask))

    def _pool_map(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Pooled:
        if mask is not None:
            raise ValueError("gsop with spatial=True gates all positions of a map: it takes no mask")
        by_channel = bags * self._channel_gates(bags, None).unsqueeze(1)
        by_position = bags.relu() * self._position_gates(bags, grid).unsqueeze(-1)
        return pooled(torch.maximum(by_channel, by_position).mean(1))

    def _channel_gates(self, bags: Tensor, mask: Tensor | None) -> Tensor:
        """Gates (B, D)."""
        reduced = self.norm(linear(self.reduce, bags.relu()), mask).relu()
        outputs = _outputs_per_row(_covariance(reduced, mask, self.centred), self.row_norm, self.rows)
        return linear(self.expand, outputs).sigmoid()

    def _position_gates(self, bags: Tensor, grid: tuple[int, int]) -> Tensor:
        """Gates (B, N) of the positions of a grid (H, W)."""
        reduced = self.spatial_norm(linear(self.spatial_reduce, bags.relu())).relu().mT
        sides = (self.side, self.side)
        if grid != sides:
            reduced = adaptive_avg_pool2d(reduced.unflatten(2, grid), sides).flatten(2)
        outputs = _outputs_per_row(_covariance(reduced, None, self.centred), self.spatial_row_norm, self.spatial_rows)
        gates = linear(self.spatial_expand, outputs.relu()).sigmoid()
        if grid != sides:
            gates = interpolate(gates.unflatten(1, (1, *sides)), grid, mode="nearest").flatten(1)
        return gates


class SolarPool(Pooling):
    """SOLAR: second-order attention between all positions, then the generalized mean.

        query_j = relu(norm(F feature_j + f)),   key_j = relu(norm(G feature_j + g)),   value_j = H feature_j + h
        A       = softmax_j(query_i . key_j / sqrt(d))                             (n, n), rows sum to 1
        x_i     = feature_i + V sum_j A_ij value_j + v                             1x1 convolutions, D -> d -> D
        vector  = generalized mean of the x_i

    The weights are those of the generalized mean of the refined features.

    Reference: Ng, Balntas, Tian and Mikolajczyk, "SOLAR: Second-Order Loss and Attention for Image Retrieval", ECCV
    2020. This is the last of their two blocks, with d = D / 2 and a learnt power from 3. Biases and batch norms are
    those of their code. V and v start at zero, so a new pooling is the generalized mean.

    Args:
        dim: Size D of the local features.
        reduction: d is D / reduction, at least 1.
        power: Start of the power of the mean.
        zero_start: V and v start at zero; else at random, as any linear layer.

    Examples:
        >>> sum(parameter.numel() for parameter in SolarPool(dim=8).parameters())
        165
    """

    on_backbone = True
    shown = ("reduction", "zero_start")

    def __init__(self, dim: int, *, reduction: int = 2, power: float = 3.0, zero_start: bool = True) -> None:
        super().__init__(dim)
        check_count("reduction", reduction)
        self.reduction, self.zero_start = reduction, zero_start
        inner = max(1, dim // reduction)
        self.query, self.key, self.value = nn.Linear(dim, inner), nn.Linear(dim, inner), nn.Linear(dim, inner)
        self.query_norm, self.key_norm = PresentBatchNorm(inner), PresentBatchNorm(inner)
        self.out = nn.Linear(inner, dim)
        self.mean = GeneralizedMeanPool(dim, power)
        for layer in (self.query, self.key, self.value):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        if zero_start:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        query = self.query_norm(linear(self.query, bags), mask).relu()
        key = self.key_norm(linear(self.key, bags), mask).relu()
        scores = query @ key.mT * query.shape[-1] ** -0.5
        attention = softmax_of_present(scores, None if mask is None else mask.unsqueeze(1))
        refined = bags + linear(self.out, attention @ linear(self.value, bags))
        return self.mean(refined, mask, details=True)


def _gate_layers(rows: int, gates: int) -> tuple[PresentBatchNorm, nn.Conv1d, nn.Linear]:
    """The norm of a covariance (rows, rows), a layer for each of its rows, and one from all their outputs to gates."""
    per_row = nn.Conv1d(rows, PER_ROW * rows, kernel_size=rows, groups=rows)
    return PresentBatchNorm(rows), per_row, nn.Linear(PER_ROW * rows, gates)


def _outputs_per_row(covariance: Tensor, norm: PresentBatchNorm, layer: nn.Conv1d) -> Tensor:
    """Normalise a covariance (B, k, k) and apply the layer of each row: (B, 4 k)."""
    rows = norm(covariance).transpose(1, 2)  # it is symmetric: its columns are the rows
    bias = layer.bias
    if bias is not None:
        bias = bias.to(rows.dtype)
    return conv1d(rows, layer.weight.to(rows.dtype), bias, groups=layer.groups).squeeze(-1)


def _covariance(values: Tensor, mask: Tensor | None, subtract_mean: bool) -> Tensor:
    """Covariance or second moments (B, d, d) of the present rows of values (B, N, d), divided by their number."""
    centred = values
    if subtract_mean:
        centred = values - mean_of_present(values, mask).unsqueeze(1)
    if mask is None:
        return centred.transpose(1, 2) @ centred / values.shape[1]
    centred = centred.masked_fill(~mask.unsqueeze(-1), 0)
    return centred.transpose(1, 2) @ centred / mask.sum(1)[:, None, None]
