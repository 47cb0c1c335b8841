"""The start from principal directions, against numpy's SVD."""

import numpy as np
import pytest
import torch

from lookalike.models import Head, median_norm, principal_projection, whitening


def features(seed: int, count: int, channels: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.linspace(3, 0.1, channels)
    return torch.randn(count, channels, generator=generator) * scales + torch.rand(channels, generator=generator)


def test_rows_are_principal_directions_at_the_asked_scale() -> None:
    local = features(0, 301, 10)
    head = Head(10, 4, "average")
    start = head.start_from_pca(local, scale_to_median_norm=2.0)

    _, values, rows = np.linalg.svd(local.double().numpy(), full_matrices=False)
    weight = head.projection.weight.detach().double().numpy()
    overlap = np.abs(weight @ rows[:4].T) / start.scale
    np.testing.assert_allclose(overlap, np.eye(4), atol=1e-4)
    norms = np.linalg.norm(local.double().numpy() @ weight.T, axis=1)
    assert np.median(norms) == pytest.approx(2, rel=1e-4)
    assert start.median_norm == pytest.approx(2, rel=1e-4)
    assert head.median_norm(local) == pytest.approx(2, rel=1e-4)
    assert start.kept == pytest.approx((values[:4] ** 2).sum() / (values**2).sum(), rel=1e-4)


def test_the_parameter_stays_the_one_an_optimiser_holds_and_equal_data_give_equal_weights() -> None:
    local = features(0, 100, 6)
    head = Head(6, 3, "average")
    parameter = head.projection.weight
    head.start_from_pca(local)
    first = parameter.detach().clone()
    head.start_from_pca(local.flip(0))
    assert head.projection.weight is parameter
    torch.testing.assert_close(parameter.detach(), first)


def test_without_scale_the_rows_are_orthonormal() -> None:
    weight = principal_projection(features(0, 100, 6), 6, scale_to_median_norm=None).weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(6), atol=1e-5, rtol=0)


def test_median_norm_of_bags() -> None:
    tokens = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [6.0, 8.0]]])
    assert median_norm(tokens[:, :1]) in (0.0, 5.0)
    assert median_norm(tokens.reshape(-1, 2)[:3]) == 1.0


def test_bad_features_are_refused() -> None:
    local = features(0, 10, 4)
    with pytest.raises(ValueError, match="dim=None"):
        Head(4, None, "average").start_from_pca(local)
    with pytest.raises(ValueError, match="only 4 principal directions"):
        principal_projection(local, 5)
    with pytest.raises(ValueError, match="shape"):
        principal_projection(local[None], 2)
    with pytest.raises(ValueError, match="finite"):
        principal_projection(local / 0, 2)
    with pytest.raises(ValueError, match="zero"):
        principal_projection(torch.zeros(5, 4), 2)


def test_whitening_scales_principal_directions() -> None:
    vectors = features(3, 400, 6)
    fitted = whitening(vectors, dim=4)
    points = vectors.double().numpy()
    covariance = np.cov(points.T)
    values = np.sort(np.linalg.eigvalsh(covariance))[::-1]
    result = points @ fitted.weight.double().numpy().T + fitted.bias.double().numpy()
    np.testing.assert_allclose(result.mean(0), 0, atol=1e-5)
    expected = values[:4] / np.sqrt(values[:4] + 10 * values.mean())
    np.testing.assert_allclose(np.cov(result.T), np.diag(expected), atol=1e-5)


def test_whitening_of_few_or_equal_vectors_is_finite() -> None:
    assert whitening(features(0, 2, 6)).weight.shape == (6, 6)
    assert whitening(features(0, 1000, 300)).weight.shape == (256, 300)
    assert torch.isfinite(whitening(torch.ones(5, 4)).weight).all()
    with pytest.raises(ValueError, match="at least two"):
        whitening(torch.ones(1, 4))
