"""Screening by products in bf16: the bound on their error, and neighbours against those without screening."""

import numpy as np
import pytest
import torch

from lookalike.retrieval import neighbours, retrieval_metrics, screening, search
from lookalike.retrieval.exact import Pairs


@pytest.fixture
def dtypes(monkeypatch: pytest.MonkeyPatch) -> set[torch.dtype]:
    """Screens on any processor; collects the dtypes that were multiplied in blocks."""
    multiplied: set[torch.dtype] = set()
    product = torch.mm

    def mm(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        multiplied.add(rows.dtype)
        return product(rows, columns)

    monkeypatch.setattr(torch, "mm", mm)
    monkeypatch.setattr(screening, "_multiplies_bf16", lambda: True)
    monkeypatch.setattr(search, "BLOCK", 128)
    return multiplied


def draw(kind: str) -> np.ndarray:
    generator = np.random.default_rng(2)
    vectors = generator.normal(size=(100, 32))[generator.integers(0, 100, 3000)]
    if kind == "clusters":
        vectors += generator.normal(size=vectors.shape)
    elif kind == "equal vectors":
        vectors[::2] += generator.normal(size=(1500, 32))
    elif kind == "near ties":
        vectors = 1 + 1e-3 * generator.normal(size=vectors.shape)
        vectors[5] = 0
    return vectors.astype(np.float32)


@pytest.mark.parametrize("gallery", [False, True])
@pytest.mark.parametrize("kind", ["clusters", "equal vectors", "near ties"])
def test_screening_changes_nothing(
    kind: str, gallery: bool, dtypes: set[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = draw(kind)
    queries, references = (vectors[:600], vectors[600:]) if gallery else (vectors, None)
    screened = neighbours(queries, references, k=6)
    assert torch.bfloat16 in dtypes
    if kind == "clusters":
        assert dtypes == {torch.bfloat16}
    elif kind == "near ties":  # nothing can be left out
        assert torch.float32 in dtypes
    monkeypatch.setattr(screening, "_multiplies_bf16", lambda: False)
    expected = neighbours(queries, references, k=6)
    assert screened.indices.equal(expected.indices)
    torch.testing.assert_close(screened.scores, expected.scores, rtol=0, atol=1e-6)


def test_metrics_with_screening_are_those_of_fp64(dtypes: set[torch.dtype]) -> None:
    vectors, labels = draw("clusters"), np.arange(3000) // 4
    vectors = vectors[np.random.default_rng(1).integers(0, 3000, 750)[labels]] + 0.8 * vectors
    measured = retrieval_metrics(vectors, labels)
    assert dtypes == {torch.bfloat16}
    assert 0.1 < measured["MAP@R"] < 0.9
    assert measured == pytest.approx(retrieval_metrics(vectors.astype(np.float64), labels), abs=1e-12)


@pytest.mark.parametrize("dim", [3, 512, 3000])
def test_the_error_of_products_is_within_its_bound(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(300, dim, generator=generator) * torch.linspace(1, 0.01, dim).square()
    pairs = Pairs(vectors[:100], vectors, cosine=True)
    screen = screening.Screen(pairs)
    queries, references = pairs.prepared(torch.float64)
    products = (screen.queries @ screen.references.T).float()
    bounds = screen.errors(torch.arange(100), products)
    assert bool(((products - queries @ references.T).abs() <= bounds).all())
    assert float(bounds.max()) < 0.009


def test_larger_errors_of_products_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that multiplies bf16 worse than it should costs time, not neighbours."""
    vectors = draw("clusters")
    expected = neighbours(vectors, k=6).indices
    product = torch.mm

    def careless(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        if rows.dtype != torch.bfloat16:
            return product(rows, columns)
        return (product(rows, columns).float() * 8).round().div(8).bfloat16()

    monkeypatch.setattr(torch, "mm", careless)
    monkeypatch.setattr(screening, "_multiplies_bf16", lambda: True)
    assert neighbours(vectors, k=6).indices.equal(expected)


def test_screening_is_for_many_references_on_capable_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = {"avx2": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    pairs = Pairs(torch.randn(2000, 4), None, cosine=True)
    assert not screening.screening_pays(pairs, 5)
    capabilities["avx512_bf16"] = True
    assert screening.screening_pays(pairs, 5)
    assert not screening.screening_pays(pairs, 50)
    assert not screening.screening_pays(Pairs(torch.randn(2000, 4), None, cosine=False), 5)
    assert not screening.screening_pays(Pairs(torch.randn(2000, 4).double(), None, cosine=True), 5)
