"""Neighbours and metrics against fp64 brute force where fp32 products lose the order; unusual arrays and labels."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookalike.retrieval import neighbours, retrieval_metrics, search


def brute_force_scores(queries: np.ndarray, references: np.ndarray, distance: str) -> np.ndarray:
    """(n, r): minus half the squared distance, between unit vectors for the cosine; pair by pair in long double."""
    exact_queries, exact_references = queries.astype(np.longdouble), references.astype(np.longdouble)
    if distance == "cosine":
        exact_queries /= np.sqrt(np.square(exact_queries).sum(1, keepdims=True))
        exact_references /= np.sqrt(np.square(exact_references).sum(1, keepdims=True))
    rows = [-np.square(exact_references - query).sum(1) / 2 for query in exact_queries]
    return np.stack(rows)


def brute_force_map(vectors: np.ndarray, labels: np.ndarray, distance: str) -> dict[str, float]:
    """P@1 and MAP@R, leave-one-out, from the definitions."""
    scores = brute_force_scores(vectors, vectors, distance)
    first, precisions = [], []
    for query, row in enumerate(scores):
        order = [index for index in np.argsort(-row, kind="stable") if index != query]
        hits = labels[order] == labels[query]
        relevant = int(hits.sum())
        hits = hits[:relevant]
        first.append(float(hits[0]))
        precisions.append(float((hits * np.cumsum(hits) / np.arange(1, relevant + 1)).sum() / relevant))
    return {"P@1": float(np.mean(first)), "MAP@R": float(np.mean(precisions))}


def draw(count: int, dim: int, classes: int = 12) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    labels = np.arange(count) % classes
    centres = generator.normal(size=(classes, dim))
    return 0.4 * centres[labels] + generator.normal(size=(count, dim)), labels


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("offset", [0.0, 10.0, 3e3, 1e5])
@pytest.mark.parametrize("scale", [1e-20, 1e-13, 1.0, 1e10, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_metrics_equal_brute_force_at_any_offset_and_scale(
    distance: str, offset: float, scale: float, dtype: torch.dtype
) -> None:
    vectors, labels = draw(400, 24)
    given_vectors = torch.from_numpy((vectors + offset) * scale).to(dtype)
    measured = retrieval_metrics(given_vectors, labels, distance=distance)
    expected = brute_force_map(given_vectors.double().numpy(), labels, distance)
    assert {name: measured[name] for name in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize(("dtype", "scales"), [(torch.float16, (1e-3, 1.0, 1e3)), (torch.bfloat16, (1e-20, 1.0, 1e20))])
def test_metrics_of_half_precision_equal_brute_force(
    distance: str, dtype: torch.dtype, scales: tuple[float, ...]
) -> None:
    vectors, labels = draw(400, 24)
    for scale in scales:
        for offset in (0.0, 10.0):
            rounded = torch.from_numpy((vectors + offset) * scale).to(dtype)
            assert len(rounded.unique(dim=0)) == len(rounded)
            measured = retrieval_metrics(rounded, labels, distance=distance)
            expected = brute_force_map(rounded.double().numpy(), labels, distance)
            assert {name: measured[name] for name in expected} == pytest.approx(expected, abs=1e-12)


@given(
    seed=st.integers(0, 2**31),
    offset=st.sampled_from([0.0, 1.0, 300.0, 1e5]),
    exponent=st.integers(-20, 20),
    spread=st.sampled_from([0, 3, 12]),
    distance=st.sampled_from(["cosine", "l2"]),
    gallery=st.booleans(),
    k=st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_neighbours_equal_brute_force(
    seed: int, offset: float, exponent: int, spread: int, distance: str, gallery: bool, k: int
) -> None:
    """Lengths within one call differ by up to 10^spread; some vectors repeat."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(220, 5)) + offset
    vectors *= 10.0 ** (exponent + rng.uniform(-spread / 2, spread / 2, (220, 1)))
    vectors[rng.integers(0, 220, 30)] = vectors[:30]
    vectors = vectors.astype(np.float32)
    queries, references = (vectors[:60], vectors) if gallery else (vectors, vectors)
    ranked = neighbours(queries, references if gallery else None, k, distance=distance)
    scores = brute_force_scores(queries, references, distance)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    chosen = np.take_along_axis(scores, ranked.indices.numpy(), 1)
    np.testing.assert_allclose(chosen, np.take_along_axis(scores, expected, 1), rtol=1e-9, atol=0)


def test_vectors_of_zeros_have_the_cosine_zero() -> None:
    vectors = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    for dtype in (np.float32, np.float64):
        ranked = neighbours(vectors.astype(dtype), k=4)
        assert ranked.indices.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2], [2, 0, 3, 1], [0, 1, 2, 3]]
        assert ranked.scores[1].tolist() == [1, 0, 0, -1]


def test_labels_may_be_tensors_of_one_number() -> None:
    expected = retrieval_metrics(VECTORS, [0, 0, 1, 1])
    assert retrieval_metrics(VECTORS, list(torch.tensor([0, 0, 1, 1]))) == expected
    assert retrieval_metrics(VECTORS, torch.tensor([0, 0, 1, 1]).bfloat16()) == expected


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("gallery", [False, True])
@pytest.mark.parametrize("rows", ["two distant clusters", "an outlier", "lengths from 1e-20 to 1e15", "near ties"])
def test_neighbours_equal_brute_force_where_products_round(distance: str, gallery: bool, rows: str) -> None:
    """More references than the slots of a query, so that fp32 blocks come first."""
    generator = np.random.default_rng(5)
    vectors = generator.normal(size=(900, 16))
    if rows == "two distant clusters":
        vectors[::2] += 2e3
        vectors[1::2] -= 2e3
    elif rows == "an outlier":
        vectors[7] = 1e12
    elif rows == "lengths from 1e-20 to 1e15":
        vectors *= 10.0 ** generator.integers(-20, 16, (900, 1))
    else:
        vectors = 1 + 1e-4 * vectors
    vectors = vectors.astype(np.float32)
    queries, references = (vectors[:300], vectors[300:]) if gallery else (vectors, vectors)
    ranked = neighbours(queries, references if gallery else None, k=7, distance=distance)
    scores = brute_force_scores(queries, references, distance)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :7]
    chosen = np.take_along_axis(scores, ranked.indices.numpy(), 1)
    best = np.take_along_axis(scores, expected, 1)
    np.testing.assert_allclose(chosen.astype(np.float64), best.astype(np.float64), rtol=1e-9, atol=1e-14)


def test_coarse_products_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who allows bf16 or TF32 products still gets exact neighbours."""
    product = torch.mm

    def coarse(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        if rows.dtype == torch.float64:
            return product(rows, columns)
        return product(rows.bfloat16(), columns.bfloat16()).float()

    vectors, _ = draw(700, 16)
    expected = neighbours(vectors.astype(np.float32), k=5).indices
    monkeypatch.setattr(torch, "mm", coarse)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert neighbours(vectors.astype(np.float32), k=5).indices.equal(expected)


def test_ordinary_vectors_need_no_fp64_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only single pairs are measured again: the blocks stay in fp32 or bf16."""
    dtypes = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: dtypes.append(a.dtype) or product(a, b))  # type: ignore[func-returns-value]
    vectors, labels = draw(2000, 32, classes=200)
    retrieval_metrics(vectors.astype(np.float32), labels)
    assert set(dtypes) <= {torch.float32, torch.bfloat16}
    assert search.BLOCK < 2000


def test_queries_and_references_of_different_precision() -> None:
    """fp64 references are not rounded to the fp32 of the queries."""
    references = np.array([[1.0, 1.0], [1.0, 1.0 + 1e-12]])
    ranked = neighbours(np.array([[1.0, 2.0]], np.float32), references, k=1, distance="l2")
    assert ranked.indices.tolist() == [[1]]


@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">f8", "<f2", "g", ">i2", "<i8", "u2", "u4", "u8"])
@pytest.mark.parametrize("stride", [1, -1, 2])
def test_any_layout_of_numbers_is_read(dtype: str, stride: int) -> None:
    whole = np.random.default_rng(0).integers(0, 90, (40, 6)).astype(dtype)[::stride, ::stride]
    plain = np.array(whole.tolist(), np.float64)
    expected = neighbours(plain, k=3, distance="l2").indices
    assert neighbours(whole, k=3, distance="l2").indices.equal(expected)


def test_whole_numbers_beyond_fp32_stay_apart() -> None:
    vectors = np.array([[2**24], [2**24 + 1], [2**24 + 3]])
    assert neighbours(vectors, k=2, distance="l2").indices.tolist() == [[0, 1], [1, 0], [2, 1]]


@pytest.mark.parametrize("vectors", [np.ones((4, 2), complex), np.full((4, 2), "1"), np.full((4, 2), None)])
def test_vectors_that_are_no_real_numbers_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(TypeError, match="queries must be real numbers, got"):
        neighbours(vectors, k=1)


VECTORS = np.array([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1]])


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([1.0, float("nan"), 1.0, 2.0], ValueError, "query_labels must not contain NaN"),
        (np.array([np.nan, np.nan, 1, 1]), ValueError, "query_labels must not contain NaN"),
        (torch.tensor([np.nan, 1, 1, 1]), ValueError, "query_labels must not contain NaN"),
        ([None, None, "a", "a"], TypeError, "query_labels must be integers or strings, got NoneType"),
        (np.array([None, 1, 1, 1]), TypeError, "query_labels must be integers or strings, got NoneType"),
        ([1, "1", 2, "2"], TypeError, "query_labels must be of one kind, got int and str"),
        (np.array([1, "1", 2, "2"], object), TypeError, "query_labels must be of one kind, got int and str"),
        ([b"a", "a", "b", "b"], TypeError, "query_labels must be of one kind, got bytes and str"),
    ],
)
def test_labels_that_could_merge_are_refused(labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        retrieval_metrics(VECTORS, labels)


@pytest.mark.parametrize(
    ("query_labels", "reference_labels"),
    [
        ([2**53, 7, 7, 7], [2**53 + 1, 2**53 + 1, 7, 7]),
        ([2**64, 7, 7, 7], [2**64 + 1, 2**64 + 1, 7, 7]),
        (np.array([2**53, 7, 7, 7], np.int64), np.array([2**53 + 1, 2**53 + 1, 7, 7], np.uint64)),
        (["a", "c", "c", "c"], ["a\0", "a\0", "c", "c"]),
    ],
)
def test_different_labels_never_merge(query_labels: Any, reference_labels: Any) -> None:
    metrics = retrieval_metrics(VECTORS, query_labels, VECTORS, reference_labels)
    assert (metrics["queries"], metrics["left_out"]) == (3, 1)


def test_equal_labels_of_different_arrays_match() -> None:
    expected = retrieval_metrics(VECTORS, [0, 0, 1, 1], VECTORS, [0, 0, 1, 1])
    for labels in (np.array([0, 0, 1, 1], np.uint8), np.array([0, 0, 1, 1], ">i4"), np.array([0, 0, 1, 1], object)):
        assert retrieval_metrics(VECTORS, [0, 0, 1, 1], VECTORS, labels) == expected
