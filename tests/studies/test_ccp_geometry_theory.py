"""Proposition 3.2.1, (3.2.8) and Lemma 3.2.1 against plain loops and exact matrices."""

import numpy as np
import pytest
import torch
from lookalike_studies.ccp_geometry import theory
from lookalike_studies.ccp_geometry.claims import lemma_claim, terms_claim
from torch import nn

MARGINS = (0.1, 0.6)


def slow_loss(one: np.ndarray, first: int, other: np.ndarray, second: int) -> float:
    distance = float(np.linalg.norm(one.astype(float) - other.astype(float)))
    if first == second:
        return max(0.0, distance - MARGINS[0])
    return max(0.0, MARGINS[1] - distance)


def drawn(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    vectors = np.random.default_rng(seed).uniform(-0.6, 0.6, size=(count, 2)).astype(np.float32)
    return vectors, np.arange(count) % 3


def slow_mean(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> float:
    losses = []
    for vector, label in zip(*one, strict=True):
        losses += [slow_loss(vector, label, *pair) for pair in zip(*other, strict=True)]
    return float(np.mean(losses))


def test_decomposition_by_plain_loops() -> None:
    train, test = drawn(0, 12), drawn(1, 15)
    proxies = drawn(2, 6)[0].reshape(3, 2, 2)
    terms = theory.decompose(train, test, proxies, MARGINS)
    expected, all_pairs = slow_mean(test, test), slow_mean(train, train)
    training = slow_mean((proxies.reshape(6, 2), np.repeat(np.arange(3), 2)), train)
    assert terms == pytest.approx((expected, training, abs(expected - all_pairs), abs(all_pairs - training)))
    assert terms.expected <= terms.training + terms.sampling + terms.subset
    assert "at most their sum in 1 of 1 runs" in terms_claim([terms], "points").here


def test_deviations_are_within_the_bound_and_fall_as_the_root() -> None:
    vectors, labels = drawn(3, 150)
    measured = theory.deviations(vectors, labels, (2, 4, 8, 16, 32), MARGINS, 0)
    assert [deviation.anchors for deviation in measured] == [6, 12, 24, 48, 96]
    for deviation in measured:
        assert deviation.within == 1.0
        assert deviation.most <= deviation.hoeffding < deviation.bound
    assert measured[-1].radius < measured[0].radius
    assert theory.slope(measured) == pytest.approx(-0.5, abs=0.1)


def test_norm_of_a_convolution_is_that_of_its_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(theory, "SIDE", 6)
    monkeypatch.setattr(theory, "POWER_STEPS", 300)
    for stride in (1, 2):
        layer = nn.Conv2d(2, 3, 3, stride=stride, padding=1, bias=False)
        basis = torch.eye(2 * 36).reshape(-1, 2, 6, 6)
        matrix = layer(basis).flatten(1).T.detach()
        norms = theory.layer_norm(layer)
        assert norms.spectral == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-3)
        assert norms.columns == pytest.approx(float(matrix.abs().sum(0).max()), rel=1e-5)
        assert norms.rows == pytest.approx(float(matrix.abs().sum(1).max()), rel=1e-5)
        assert norms.spectral <= (norms.columns * norms.rows) ** 0.5


def test_the_lemma_is_false_and_the_clip_is_1_lipschitz() -> None:
    summing = theory.summing_layer()
    assert summing.columns == 1
    assert summing.spectral == pytest.approx(8**0.5)
    assert 0.99 < theory.clip_ratio() <= 1 + 1e-9
    claim = lemma_claim(theory.layer_norms(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(4, 2))))
    assert claim.verdict == "not reproduced"
    assert "a spectral norm of 2.83" in claim.here
    assert "Of 2 trained layers" in claim.here
