"""Average and max against loops over the places."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookalike import pooling
from lookalike.pooling import AveragePool, MaxPool

shapes = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4))


def bags_and_mask(seed: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    bags = torch.randn(shape, generator=generator, dtype=torch.float64) - 2  # a zero put in would win the maximum
    mask = torch.rand(shape[:2], generator=generator) < 0.5
    mask[:, 0] |= ~mask.any(1)
    return bags, mask


@given(st.integers(0, 2**31), shapes, st.booleans())
@settings(max_examples=40, deadline=None)
def test_both_equal_loops(seed: int, shape: tuple[int, int, int], masked: bool) -> None:
    bags, mask = bags_and_mask(seed, shape)
    average = AveragePool(shape[2])(bags, mask if masked else None, details=True)
    largest = MaxPool(shape[2])(bags, mask if masked else None, details=True)
    for b in range(shape[0]):
        present = [j for j in range(shape[1]) if mask[b, j] or not masked]
        mean = sum(bags[b, j] for j in present) / len(present)
        torch.testing.assert_close(average.vector[b], mean)
        wins = torch.zeros(shape[1], dtype=torch.float64)
        for d in range(shape[2]):
            winner = max(present, key=lambda j: float(bags[b, j, d]))
            assert largest.vector[b, d] == bags[b, winner, d]
            wins[winner] += 1 / shape[2]
        torch.testing.assert_close(largest.weights[b], wins)
        uniform = torch.tensor([1 / len(present) if j in present else 0.0 for j in range(shape[1])])
        torch.testing.assert_close(average.weights[b], uniform.double())
    assert average.attributes.shape == largest.attributes.shape == (shape[0], 0)


@pytest.mark.parametrize("name", ["average", "max"])
def test_registered_with_dtype_and_gradients_kept(name: str) -> None:
    pool = pooling.create(name, dim=5)
    maps = torch.randn(2, 5, 3, 4, dtype=torch.bfloat16, requires_grad=True)
    vector = pool(maps)
    assert vector.dtype == torch.bfloat16
    assert pool.explain(maps).weights.dtype == torch.float32
    vector.sum().backward()
    # Each channel passes on a gradient of 1 in all, spread out or to one place.
    torch.testing.assert_close(maps.grad.float().sum((2, 3)), torch.ones(2, 5), atol=0.02, rtol=0)
    assert int((maps.grad != 0).sum()) == (10 if name == "max" else 120)


def test_average_equals_gsp_that_keeps_everything() -> None:
    tokens = torch.randn(3, 7, 4)
    torch.testing.assert_close(AveragePool(4)(tokens), pooling.create("gsp", dim=4, keep=1.0)(tokens))


@pytest.mark.parametrize("pool", [AveragePool(3), MaxPool(3)])
def test_wrong_input_is_refused(pool: torch.nn.Module) -> None:
    with pytest.raises(ValueError, match="D = 3"):
        pool(torch.zeros(1, 2, 4))
    with pytest.raises(ValueError, match="at least one present feature"):
        pool(torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.bool))


@pytest.mark.parametrize("name", ["average", "max"])
def test_they_have_no_settings(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no setting 'out_dim'; it has: none"):
        pooling.create(name, dim=4, out_dim=2)
