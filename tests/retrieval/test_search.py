"""neighbours against sorted lists of every pair, with blocks so small that every seam is crossed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookalike import retrieval
from lookalike.retrieval import candidates, retrieval_metrics, search
from lookalike.retrieval.search import neighbours


@contextmanager
def small_blocks(block: int, most_slots: int = 2**20, numpy: bool = True) -> Iterator[None]:
    """Few slots, few rows; ``most_slots=0`` without symmetry, ``numpy=False`` as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "BLOCK", block)
        patch.setattr(search, "MOST_SLOTS", most_slots)
        patch.setattr(search, "ROW_SCORES", 20 * block)
        patch.setattr(candidates, "SPARE", 1)
        patch.setattr(candidates, "_use_numpy", lambda _: numpy)
        yield


def plain_ranking(queries: np.ndarray, references: np.ndarray, k: int) -> list[list[int]]:
    def squared(a: np.ndarray, b: np.ndarray) -> int:
        return sum((int(x) - int(y)) ** 2 for x, y in zip(a, b, strict=True))

    return [sorted(range(len(references)), key=lambda i: (squared(q, references[i]), i))[:k] for q in queries]


@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 40),
    r=st.integers(0, 40),
    k=st.integers(1, 6),
    values=st.integers(2, 30),
    block=st.integers(1, 12),
    symmetric=st.booleans(),
    numpy=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float32, np.float64]),
)
@settings(max_examples=150, deadline=None)
def test_against_plain_lists(
    seed: int, n: int, r: int, k: int, values: int, block: int, symmetric: bool, numpy: bool, dtype: type
) -> None:
    """Whole numbers, exact in every precision: duplicates and ties in plenty."""
    generator = np.random.default_rng(seed)
    queries = generator.integers(0, values, (n, 2)).astype(dtype)
    references = generator.integers(0, values, (r, 2)).astype(dtype) if r else None
    others = queries if references is None else references
    k = min(k, len(others))
    with small_blocks(block, 2**20 if symmetric else 0, numpy):
        found = neighbours(queries, references, k, distance="l2")
    assert found.indices.tolist() == plain_ranking(queries, others, k)
    expected = -((queries[:, None] - others[found.indices.numpy()]) ** 2).sum(-1) / 2
    assert found.scores.tolist() == expected.tolist()


@pytest.mark.parametrize("gallery", [False, True])
def test_the_cosine_in_blocks(gallery: bool) -> None:
    generator = np.random.default_rng(0)
    queries = generator.normal(size=(700, 20)).astype(np.float32)  # more than a block, and not a whole number of them
    references = generator.normal(size=(900, 20)).astype(np.float32) if gallery else queries
    found = neighbours(queries, references if gallery else None, k=9)
    units = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (queries, references)]
    cosines = units[0].astype(np.float64) @ units[1].T.astype(np.float64)
    np.testing.assert_allclose(found.scores, -np.sort(-cosines, axis=1)[:, :9], atol=1e-6)
    np.testing.assert_allclose(found.scores, np.take_along_axis(cosines, found.indices.numpy(), 1), atol=1e-6)
    assert all(len(set(row)) == 9 for row in found.indices.tolist())


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("gallery", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_vectors_tie_wherever_they_lie(
    distance: str, gallery: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of each, strewn over the blocks: their scores are one number, whatever the product rounds."""
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: (c := product(a, b)) + 1e-5 * torch.rand_like(c))
    torch.manual_seed(0)
    vectors = torch.randn(400, 77, dtype=dtype).repeat(3, 1)[torch.randperm(1200)]
    queries = torch.randn(550, 77, dtype=dtype) if gallery else vectors
    found = neighbours(queries, vectors if gallery else None, 30, distance=distance)
    triples = found.indices.view(len(found.indices), 10, 3)
    assert bool((vectors[triples] == vectors[triples[:, :, :1]]).all())
    assert bool((triples.diff(dim=2) > 0).all())
    assert bool((found.scores.view_as(triples).diff(dim=2) == 0).all())


@pytest.mark.parametrize("numpy", [True, False])
def test_a_collapsed_embedding_and_one_of_few_values(numpy: bool) -> None:
    with small_blocks(8, numpy=numpy):
        assert neighbours(np.ones((50, 3), np.float32), k=3).indices.tolist() == [[0, 1, 2]] * 50
        corners = np.eye(50, dtype=np.float32)  # all others equally far
        expected = [[i, *[j for j in range(3) if j != i][:2]] for i in range(50)]
        assert neighbours(corners, k=3, distance="l2").indices.tolist() == expected
        signed_zeros = np.array([[0.0, 1.0], [-0.0, 1.0]] * 20, np.float32)
        assert neighbours(signed_zeros, k=2).indices.tolist() == [[0, 1]] * 40


def test_large_numbers_and_autocast() -> None:
    """Squares that leave fp32, and a caller who computes in bfloat16."""
    line = torch.arange(200.0).square().unsqueeze(1)
    expected = neighbours(line, k=4, distance="l2").indices
    assert neighbours(line * 2.0**80, k=4, distance="l2").indices.equal(expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert neighbours(line, k=4, distance="l2").indices.equal(expected)


@pytest.mark.parametrize("mode", ["leave one out", "few queries with a reference", "gallery"])
def test_metrics_do_not_depend_on_the_algorithm(mode: str) -> None:
    """fp64 selects from whole rows; fp32 in small blocks must agree where whole numbers make both exact."""
    generator = np.random.default_rng(1)
    vectors, labels = generator.integers(-3, 4, (150, 3)), generator.integers(0, 12, 150)
    if mode == "few queries with a reference":
        labels[30:] = np.arange(100, 220)
    data = (vectors[:50], labels[:50], vectors[50:], labels[50:]) if mode == "gallery" else (vectors, labels)
    single, double = (tuple(a.astype(t) if a.ndim == 2 else a for a in data) for t in (np.float32, np.float64))
    expected = retrieval_metrics(*double, distance="l2", ks=(1, 3))
    for most_slots in (0, 2**20):
        with small_blocks(7, most_slots):
            assert retrieval_metrics(*single, distance="l2", ks=(1, 3)) == pytest.approx(expected, abs=1e-12)


def test_memory_stays_far_below_the_matrix_of_scores() -> None:
    def status(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) // 1024

    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    except OSError:
        pytest.skip("this system does not tell the peak of memory")
    count = 12_000  # 576 MB of scores
    vectors, labels = torch.randn(count, 4), torch.arange(count) // 4
    before = status("VmRSS")
    retrieval_metrics(vectors, labels)
    assert status("VmHWM") - before < 150


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((np.eye(3),), {"k": 0}, ValueError, "k must be at least 1, got 0"),
        ((np.eye(3),), {"k": 4}, ValueError, "k must be at most the number of references, 3, got 4"),
        ((np.eye(3),), {"k": 1, "distance": "dot"}, ValueError, "'cosine' or 'l2', got 'dot'"),
        ((np.eye(3), np.eye(2)), {"k": 1}, ValueError, "one size"),
        ((np.eye(3), np.full((2, 3), np.inf)), {"k": 1}, ValueError, "references must be finite"),
    ],
)
def test_bad_input_is_refused(arguments: tuple, options: dict, error: type[Exception], message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(error, match=message):
        neighbours(*arguments, **options)


def test_neighbours_is_exported_by_the_package() -> None:
    assert retrieval.neighbours is neighbours
    assert set(retrieval.__all__) == {"neighbours", "retrieval_metrics"}
