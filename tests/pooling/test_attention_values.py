"""The attention family against its formulas in plain loops, values by hand, layer sizes of the sources, and timm."""

import copy
from math import log, log1p, prod

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from timm.layers.cbam import CbamModule
from torch import Tensor, nn

from lookalike.models import Head
from lookalike.pooling.attention import AttentionPool, DelfPool, SimPool
from lookalike.pooling.attention_blocks import CbamPool, GsopPool, SolarPool
from lookalike.pooling.base import Pooled, Pooling
from lookalike.pooling.feature_weights import SmkPool

Array = NDArray[np.float64]
DIM, GRID = 4, (3, 2)

both_modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
with_and_without_mask = pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])


class Source:
    """A batch of bags as lists of the present places, and the state of a pooling, all in NumPy."""

    def __init__(self, pool: Pooling, training: bool, masked: bool) -> None:
        torch.manual_seed(11)
        self.pool = pool.double().train(training)
        with torch.no_grad():
            for tensor in pool.state_dict().values():
                tensor.add_(0.4 * torch.randn_like(tensor).abs())
        self.training = training
        count = prod(GRID)
        self.tokens = torch.randn(3, count, DIM, dtype=torch.float64)
        self.mask = (
            torch.tensor([[1, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 0], [1, 1, 1, 1, 1, 1]]).bool() if masked else None
        )
        present = [range(count) if self.mask is None else self.mask[b].nonzero().flatten().tolist() for b in range(3)]
        self.places = [list(places) for places in present]
        self.state = {key: value.clone().numpy() for key, value in pool.state_dict().items()}

    def bag(self, b: int) -> Array:
        return self.tokens[b, self.places[b]].numpy()

    def linear(self, name: str, x: Array) -> Array:
        return x @ self.state[f"{name}.weight"].T + self.state.get(f"{name}.bias", 0.0)

    def norm(self, name: str, bags: list[Array]) -> list[Array]:
        """Batch norm of lists of rows, over all rows of all bags."""
        rows = np.concatenate(bags)
        mean, variance = self.state[f"{name}.running_mean"], self.state[f"{name}.running_variance"]
        if self.training:
            mean, variance = rows.mean(0), rows.var(0)
        scale, shift = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        return [(bag - mean) / np.sqrt(variance + 1e-5) * scale + shift for bag in bags]

    def check(self, vectors: list[Array], weights: list[Array] | None) -> None:
        maps = self.tokens.mT.reshape(3, DIM, *GRID)
        result: Pooled = self.pool(maps, self.mask, details=True)
        torch.testing.assert_close(result.vector, torch.tensor(np.stack(vectors)), rtol=1e-9, atol=1e-11)
        if weights is not None:
            expected = torch.zeros(3, prod(GRID), dtype=torch.float64)
            for b, places in enumerate(self.places):
                expected[b, places] = torch.tensor(weights[b])
            torch.testing.assert_close(result.weights, expected, rtol=1e-9, atol=1e-11)


def softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


@with_and_without_mask
@pytest.mark.parametrize("hidden", [None, 3])
def test_attention(masked: bool, hidden: int | None) -> None:
    source = Source(AttentionPool(DIM, hidden=hidden, temperature=0.6), True, masked)
    weights = []
    for b in range(3):
        seen = source.bag(b) if hidden is None else np.tanh(source.linear("inner", source.bag(b)))
        weights.append(softmax(source.linear("score", seen)[:, 0] / 0.6))
    source.check([w @ source.bag(b) for b, w in enumerate(weights)], weights)


@with_and_without_mask
@pytest.mark.parametrize("power", [None, 1.25, 2.0, 7.0])
def test_simpool(masked: bool, power: float | None) -> None:
    source = Source(SimPool(DIM, power=power), True, masked)
    vectors, weights = [], []
    for b in range(3):
        x = source.bag(b)
        normed = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6)
        normed = normed * source.state["norm.weight"] + source.state["norm.bias"]
        query, keys = source.linear("query", x.mean(0)), source.linear("key", normed)
        weights.append(softmax(np.array([key @ query for key in keys]) / np.sqrt(DIM)))
        if power is None:
            vectors.append(weights[b] @ normed)
        else:
            vectors.append((weights[b] @ (normed - normed.min() + 1e-6) ** power) ** (1 / power))
    source.check(vectors, weights)


@with_and_without_mask
@pytest.mark.parametrize("unit_features", [True, False])
def test_delf(masked: bool, unit_features: bool) -> None:
    source = Source(DelfPool(DIM, hidden=3, unit_features=unit_features), True, masked)
    vectors, weights = [], []
    for b in range(3):
        x, vector, scores = source.bag(b), np.zeros(DIM), []
        for row in x:
            scores.append(log1p(np.exp(source.linear("score", relu(source.linear("inner", row)))[0])))
            vector = vector + scores[-1] * (row / np.linalg.norm(row) if unit_features else row) / len(x)
        vectors.append(vector)
        weights.append(np.array(scores) / sum(scores))
    source.check(vectors, weights)


@with_and_without_mask
@both_modes
@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_cbam(masked: bool, training: bool, kernel: int) -> None:
    source = Source(CbamPool(DIM, reduction=2, kernel=kernel), training, masked)
    refined, scores = [], []
    for b in range(3):
        x = source.bag(b)
        both = [source.linear("outer", relu(source.linear("inner", seen))) for seen in (x.mean(0), x.max(0))]
        refined.append(x * sigmoid(both[0] + both[1]))
        maps = np.zeros((2, *GRID))
        for place, row in zip(source.places[b], refined[b], strict=True):
            maps[:, place // GRID[1], place % GRID[1]] = row.max(), row.mean()
        bag_scores = []
        for place in source.places[b]:
            score, middle = 0.0, kernel // 2
            for down in range(kernel):
                for right in range(kernel):
                    i, j = place // GRID[1] + down - middle, place % GRID[1] + right - middle
                    if 0 <= i < GRID[0] and 0 <= j < GRID[1]:
                        score += source.state["convolution.weight"][0, :, down, right] @ maps[:, i, j]
            bag_scores.append(score)
        scores.append(np.array(bag_scores)[:, None])
    gates = [sigmoid(values) for values in source.norm("norm", scores)]
    vectors = [(x * gate).mean(0) for x, gate in zip(refined, gates, strict=True)]
    source.check(vectors, [gate[:, 0] / gate.sum() for gate in gates])


@both_modes
def test_cbam_is_timms_block_and_the_average(training: bool) -> None:
    torch.manual_seed(4)
    ours, theirs = CbamPool(32).double().train(training), CbamModule(32, mlp_bias=True).double().train(training)
    with torch.no_grad():
        for mine, other in ((ours.inner, theirs.channel.fc1), (ours.outer, theirs.channel.fc2)):
            other.weight.copy_(mine.weight[:, :, None, None])
            other.bias.copy_(mine.bias)
        theirs.spatial.conv.conv.weight.copy_(ours.convolution.weight.flip(1))  # their maps come in the other order
        theirs.spatial.conv.bn.weight.copy_(ours.norm.weight.fill_(1.7))
        theirs.spatial.conv.bn.bias.copy_(ours.norm.bias.fill_(-0.4))
        theirs.spatial.conv.bn.running_mean.copy_(ours.norm.running_mean.fill_(0.2))
        theirs.spatial.conv.bn.running_var.copy_(ours.norm.running_variance.fill_(0.7))
    maps = torch.randn(5, 32, 6, 9, dtype=torch.float64)
    torch.testing.assert_close(ours(maps), theirs(maps).mean((2, 3)))


@with_and_without_mask
@both_modes
def test_gsop(masked: bool, training: bool) -> None:
    source, reduced = Source(GsopPool(DIM, reduced=3), training, masked), 3
    seen = source.norm("norm", [source.linear("reduce", relu(source.bag(b))) for b in range(3)])
    covariances = [np.cov(relu(rows), rowvar=False, bias=True) for rows in seen]
    # A channel of the second norm is a row; the entries of that row in all pictures are its values.
    normed = source.norm("row_norm", [matrix.T for matrix in covariances])
    vectors = []
    for b in range(3):
        numbers = []
        for i in range(reduced):
            for k in range(4):
                kernel = source.state["rows.weight"][4 * i + k, 0]
                numbers.append(kernel @ normed[b].T[i] + source.state["rows.bias"][4 * i + k])
        vectors.append(sigmoid(source.linear("expand", np.array(numbers))) * source.bag(b).mean(0))
    source.check(vectors, None)


@both_modes
def test_gsop_is_the_layers_of_its_authors(training: bool) -> None:
    """Convolutions on maps, a grouped one along the rows of the covariance, and the batch norms of torch."""
    torch.manual_seed(5)
    pool, d = GsopPool(5, reduced=3).double().train(training), 3
    first, second = nn.BatchNorm2d(d).double().train(training), nn.BatchNorm2d(d).double().train(training)
    rows = nn.Conv2d(d, 4 * d, (d, 1), groups=d).double()
    rows.load_state_dict({"weight": pool.rows.weight.unsqueeze(-1), "bias": pool.rows.bias})
    maps = torch.randn(4, 5, 3, 2, dtype=torch.float64)
    with torch.no_grad():
        reduced = nn.functional.conv2d(maps.relu(), pool.reduce.weight[:, :, None, None], pool.reduce.bias)
        seen = first(reduced).relu().flatten(2)
        matrices = torch.stack([torch.cov(bag, correction=0) for bag in seen]).unsqueeze(-1)
        gates = nn.functional.linear(rows(second(matrices)).flatten(1), pool.expand.weight, pool.expand.bias).sigmoid()
        expected = (maps * gates[:, :, None, None]).mean((2, 3))
        torch.testing.assert_close(pool(maps), expected)


def second_moments(rows: Array, centred: bool) -> Array:
    """Of the variables (k, n): their covariance, or without subtracting the mean."""
    result = np.zeros((len(rows), len(rows)))
    means = [row.mean() if centred else 0.0 for row in rows]
    for i, first in enumerate(rows):
        for j, second in enumerate(rows):
            result[i, j] = np.mean((first - means[i]) * (second - means[j]))
    return result


def spatial_gsop(source: Source, side: int, centred: bool = True) -> list[Array]:
    """GSoP with both blocks in loops: the gates of its channels and of its positions, fused by the maximum."""
    height, width = GRID

    def gates(prefix: str, values: list[Array], *, cut: bool) -> list[Array]:
        """From values (variables, observations): covariance, norm, a layer for each row, a layer for all."""
        covariances = [second_moments(rows, centred) for rows in values]
        normed = source.norm(f"{prefix}row_norm", [matrix.T for matrix in covariances])
        result = []
        for matrix in normed:
            numbers = []
            for i in range(len(matrix)):
                for k in range(4):
                    kernel = source.state[f"{prefix}rows.weight"][4 * i + k, 0]
                    number = kernel @ matrix[:, i] + source.state[f"{prefix}rows.bias"][4 * i + k]
                    numbers.append(max(number, 0) if cut else number)
            result.append(sigmoid(source.linear(f"{prefix}expand", np.array(numbers))))
        return result

    def window(i: int, length: int) -> range:
        """The rows or columns of the map that the i-th of ``side`` averages."""
        return range(i * length // side, -(-(i + 1) * length // side))

    seen = source.norm("norm", [source.linear("reduce", relu(source.bag(b))) for b in range(3)])
    channels = gates("", [relu(rows).T for rows in seen], cut=False)
    seen = source.norm("spatial_norm", [source.linear("spatial_reduce", relu(source.bag(b))) for b in range(3)])
    averaged = []
    for rows in seen:
        cells = []
        for i in range(side):
            for j in range(side):
                members = [rows[y * width + x] for y in window(i, height) for x in window(j, width)]
                cells.append(np.mean(relu(np.array(members)), axis=0))
        averaged.append(np.array(cells))
    positions = gates("spatial_", averaged, cut=True)
    vectors = []
    for b in range(3):
        total = np.zeros(DIM)
        for j, feature in enumerate(source.bag(b)):
            gate = positions[b][(j // width) * side // height * side + (j % width) * side // width]
            total += np.maximum(channels[b] * feature, gate * relu(feature))
        vectors.append(total / (height * width))
    return vectors


@both_modes
@pytest.mark.parametrize(("side", "centred"), [(1, True), (2, True), (3, True), (4, True), (3, False)])
def test_gsop_with_both_blocks_in_loops(training: bool, side: int, centred: bool) -> None:
    source = Source(GsopPool(DIM, reduced=3, spatial=True, side=side, centred=centred), training, masked=False)
    source.check(spatial_gsop(source, side, centred), None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 5, 1, 1), (2, 5, 3, 3), (4, 5, 7, 7), (3, 5, 2, 9)])
@both_modes
def test_gsop_with_both_blocks_in_any_shape_and_dtype(
    training: bool, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    pool = GsopPool(5, reduced=4, spatial=True, side=3).double().train(training)
    maps = torch.randn(shape, dtype=torch.float64).to(dtype)
    expected = copy.deepcopy(pool)(maps.double())
    lower = pool.float() if dtype != torch.float64 else pool
    features = maps.requires_grad_()
    vector = lower(features)
    assert vector.dtype == dtype
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(vector.double(), expected, rtol=tolerance, atol=tolerance)
    vector.float().square().sum().backward()
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()
    assert all(parameter.grad is not None for parameter in lower.parameters())


def test_gsop_with_both_blocks_by_differences_and_limits() -> None:
    torch.manual_seed(1)
    pool = GsopPool(3, reduced=2, spatial=True, side=2).double().eval()
    maps = torch.randn(2, 3, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(pool, (maps,))
    with torch.no_grad():
        pool.expand.bias.fill_(-100)  # the channels are shut: what is left is the positive part
        pool.spatial_expand.bias.fill_(100)
        torch.testing.assert_close(pool(maps), maps.relu().mean((2, 3)))
        pool.spatial_expand.bias.fill_(-100)
        pool.expand.bias.fill_(100)  # open channels and shut positions: negative features count as 0
        torch.testing.assert_close(pool(maps), maps.relu().mean((2, 3)))
    with pytest.raises(ValueError, match="it takes no mask"):
        pool(maps, torch.ones(2, 6, dtype=torch.bool))


def test_gsop_with_both_blocks_comes_after_the_projection() -> None:
    head = Head(channels=9, dim=4, pooling="gsop", pooling_settings={"spatial": True, "side": 2, "reduced": 3})
    assert (head.pools_first, head.pooling.dim, head.pooling.on_backbone) == (False, 4, False)
    assert head(torch.rand(2, 9, 9)).shape == (2, 4)
    assert Head(channels=9, dim=4, pooling="gsop", pooling_settings={"reduced": 3}).pools_first


@with_and_without_mask
@both_modes
def test_solar(masked: bool, training: bool) -> None:
    source = Source(SolarPool(DIM), training, masked)
    bags = [source.bag(b) for b in range(3)]
    queries = source.norm("query_norm", [source.linear("query", bag) for bag in bags])
    keys = source.norm("key_norm", [source.linear("key", bag) for bag in bags])
    power = source.state["mean.power"][0]
    vectors, weights = [], []
    for bag, query, key in zip(bags, queries, keys, strict=True):
        values, refined = source.linear("value", bag), []
        for i in range(len(bag)):
            attention = softmax(np.array([relu(query[i]) @ relu(key[j]) for j in range(len(bag))]) / np.sqrt(DIM // 2))
            refined.append(bag[i] + source.linear("out", attention @ values))
        powers = np.maximum(np.array(refined), 1e-6) ** power
        vectors.append(powers.mean(0) ** (1 / power))
        weights.append((powers / powers.sum(0)).mean(1))
    source.check(vectors, weights)


def test_a_new_solar_is_the_generalized_mean() -> None:
    tokens = torch.rand(2, 5, DIM)
    torch.testing.assert_close(SolarPool(DIM)(tokens), tokens.pow(3).mean(1).pow(1 / 3))
    at_random = SolarPool(DIM, zero_start=False)
    assert at_random.out.weight.std() > 0.05
    assert not torch.allclose(at_random(tokens), SolarPool(DIM)(tokens))


@with_and_without_mask
@pytest.mark.parametrize("window", [1, 3, 5])
def test_smk(masked: bool, window: int) -> None:
    source = Source(SmkPool(DIM, window=window), True, masked)
    vectors, weights = [], []
    for b in range(3):
        norms = np.array([np.sqrt((row**2).sum() + 1e-10) for row in source.bag(b)])
        weights.append(norms / norms.sum())
        vector = np.zeros(DIM)
        for place, weight in zip(source.places[b], weights[b], strict=True):
            near = [
                row
                for other, row in zip(source.places[b], source.bag(b), strict=True)
                if abs(place // GRID[1] - other // GRID[1]) <= window // 2
                and abs(place % GRID[1] - other % GRID[1]) <= window // 2
            ]
            vector = vector + weight * np.mean(near, axis=0)
        vectors.append(vector)
    source.check(vectors, weights)


def put(pool: Pooling, **values: list[float]) -> Pooling:
    """Set a pooling by hand: the named tensors to the numbers, all other weights and biases to zero."""
    pool = pool.double().eval()
    with torch.no_grad():
        for name, tensor in pool.state_dict().items():
            name = name.replace(".", "_")
            if "norm_" in name and not isinstance(pool, SimPool):  # batch norms that change nothing
                tensor.fill_({"weight": 1.0, "variance": 1 - 1e-5}.get(name.rsplit("_")[-1], 0.0))
            else:
                tensor.copy_(torch.tensor(values.pop(name, [0.0] * tensor.numel())).reshape(tensor.shape))
    assert not values
    return pool


def close(result: Pooled, vector: list[float], weights: list[float]) -> None:
    torch.testing.assert_close(result.vector, torch.tensor([vector], dtype=torch.float64), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result.weights, torch.tensor([weights], dtype=torch.float64), rtol=1e-5, atol=1e-5)


def tokens(*rows: list[float]) -> Tensor:
    return torch.tensor([rows], dtype=torch.float64)


def row_map(*values: float) -> Tensor:
    """One row of places of one channel."""
    return torch.tensor(values, dtype=torch.float64).view(1, 1, 1, -1)


def test_attention_by_hand() -> None:
    """exp of the scores is 1 and 3; at half the temperature 1 and 9."""
    close(put(AttentionPool(1), score_weight=[log(3)])(tokens([0], [1]), details=True), [0.75], [0.25, 0.75])
    cold = put(AttentionPool(1, temperature=0.5), score_weight=[log(3)])
    close(cold(tokens([0], [1]), details=True), [0.9], [0.1, 0.9])
    # However low the score of what is present, what is absent does not get a part.
    low = put(AttentionPool(1), score_weight=[-1e6])
    close(low(tokens([1], [7]), torch.tensor([[True, False]]), details=True), [1.0], [1.0, 0.0])


def test_simpool_by_hand() -> None:
    """Normed: (-1, 1) twice and (1, -1); the average is (2, 4) / 3, so scores are c (2, 2, -2) / 3 / sqrt(2)."""
    c = log(2) * 3 / 4 * 2**0.5
    pool = put(SimPool(2), norm_weight=[1, 1], query_weight=[1, 0, 0, 1], key_weight=[c, 0, 0, c])
    result = pool(tokens([0, 2], [0, 2], [2, 0]), details=True)
    close(result, [(0.2 * 4) ** 0.5, (0.8 * 4) ** 0.5], [0.4, 0.4, 0.2])


def test_simpool_does_not_take_an_absent_place_for_the_least() -> None:
    """Normed, an absent place is the shift alone, (-9, 0); present ones are (1, -1) more than that."""
    pool = put(SimPool(2), norm_weight=[1, 1], norm_bias=[-9, 0], query_weight=[0] * 4)
    rows = tokens([3, 1], [2, 1], [5, 0]).requires_grad_()
    vector = pool(rows, torch.tensor([[True, False, True]]))
    torch.testing.assert_close(vector, pool(tokens([3, 1], [5, 0])))
    torch.testing.assert_close(vector.detach(), tokens([0.0, 7.0])[0], rtol=0, atol=1e-4)
    vector.sum().backward()
    assert torch.isfinite(rows.grad).all()


def test_delf_by_hand() -> None:
    """Scores log(1 + 1) and log(1 + 3) for the unit vectors (0, 1) and (0.6, 0.8)."""
    pool = put(DelfPool(2, hidden=1), inner_weight=[1, 0], score_weight=[log(3) / 3])
    close(pool(tokens([0, 5], [3, 4]), details=True), [0.6 * log(2), 1.3 * log(2)], [1 / 3, 2 / 3])


def test_shares_of_scores_that_are_too_small_for_numbers() -> None:
    """exp(-1000) is zero even in fp64, its share is not; sigmoid and softplus are exp there."""
    faint = put(DelfPool(1, hidden=1), inner_weight=[1], score_weight=[log(3)], score_bias=[-1000])
    close(faint(tokens([0], [1]), details=True), [0.0], [0.25, 0.75])
    faint = put(CbamPool(1, kernel=1), outer_bias=[50], convolution_weight=[log(3), 0])
    with torch.no_grad():
        faint.norm.bias.fill_(-1000)
    close(faint(row_map(0, 1), details=True), [0.0], [0.25, 0.75])


def test_cbam_by_hand() -> None:
    """The channel's gate is sigmoid(2 log(3) / 2) = 3/4; 4 and 8 become 3 and 6, with gates 3/4 and 9/10."""
    pool = put(CbamPool(1, kernel=1), outer_bias=[log(3) / 2], convolution_weight=[log(3) / 3, 0])
    close(pool(row_map(4, 8), details=True), [(0.75 * 3 + 0.9 * 6) / 2], [5 / 11, 6 / 11])


def test_gsop_by_hand() -> None:
    """The variance of 0 and 2 is 1, the gate sigmoid(log 3) = 3/4, the average 1."""
    pool = put(GsopPool(1, reduced=1), reduce_weight=[1], rows_weight=[1, 0, 0, 0], expand_weight=[log(3), 0, 0, 0])
    torch.testing.assert_close(pool(tokens([0], [2])), tokens([0.75])[0], rtol=1e-5, atol=1e-5)
    pool.centred = False  # the mean of the squares is 2, the gate sigmoid(2 log 3) = 9/10
    torch.testing.assert_close(pool(tokens([0], [2])), tokens([0.9])[0], rtol=1e-5, atol=1e-5)


def test_solar_by_hand() -> None:
    """0 looks at both alike and becomes 1/2; 1 looks at 0 and 1 by 1 to 3 and becomes 7/4."""
    layers = {"query_weight": [1], "key_weight": [log(3)], "value_weight": [1], "out_weight": [1], "mean_power": [1]}
    close(put(SolarPool(1, reduction=1), **layers)(tokens([0], [1]), details=True), [1.125], [2 / 9, 7 / 9])


def test_smk_by_hand() -> None:
    """Smoothed, 1 2 3 is 1.5 2 2.5; without the 2, the 1 and the 3 have no neighbours."""
    pool = SmkPool(1)
    close(pool(row_map(1, 2, 3), details=True), [13 / 6], [1 / 6, 2 / 6, 3 / 6])
    absent = torch.tensor([[True, False, True]])
    close(pool(row_map(1, 2, 3), absent, details=True), [2.5], [0.25, 0, 0.75])


@pytest.mark.parametrize(
    ("pool", "count"),
    [
        (AttentionPool(2048), 2048),
        (AttentionPool(128, hidden=64), 128 * 64 + 64 + 64),
        (SimPool(2048), 2 * 2048 * 2048 + 2 * 2048),
        (DelfPool(1024), 1024 * 512 + 512 + 512 + 1),
        (CbamPool(2048), (2048 * 128 + 128) + (128 * 2048 + 2048) + 2 * 49 + 2),
        (GsopPool(2048), (2048 * 128 + 128) + 2 * 256 + (4 * 128 * 128 + 4 * 128) + (512 * 2048 + 2048)),
        (SolarPool(2048), 3 * (2048 * 1024 + 1024) + (1024 * 2048 + 2048) + 2 * 2 * 1024 + 1),
        (SmkPool(2048), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Pooling) else "",
)
def test_as_many_parameters_as_the_sources_layers_have(pool: Pooling, count: int) -> None:
    assert sum(parameter.numel() for parameter in pool.parameters()) == count
    assert pool.out_dim == pool.dim
    assert pool.on_backbone != isinstance(pool, AttentionPool)
