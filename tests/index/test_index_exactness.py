"""The exact index against fp64 brute force at any offset and scale; arrays of any layout, or one clear error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookalike import index
from lookalike.index import database
from lookalike.index.faiss_index import FaissIndex
from lookalike.index.items import check_vectors
from lookalike.index.storage import About

DIM = 8


def make_index(folder: Path, distance: str, kind: str = "flat") -> FaissIndex:
    folder.mkdir()
    about = About(distance, DIM, "fingerprint", "run", "faiss", kind)
    about.write(folder)
    database.Database.make(folder / database.FILE)
    return FaissIndex(folder, about)


def items(count: int) -> list[index.Item]:
    return [index.Item(f"i{number:05}", f"/{number}.jpg") for number in range(count)]


def brute_force(queries: np.ndarray, vectors: np.ndarray, distance: str, k: int) -> np.ndarray:
    exact_queries, exact_vectors = queries.astype(np.longdouble), vectors.astype(np.longdouble)
    if distance == "cosine":
        exact_queries = exact_queries / np.sqrt(np.square(exact_queries).sum(1, keepdims=True))
        exact_vectors = exact_vectors / np.sqrt(np.square(exact_vectors).sum(1, keepdims=True))
    squares = np.stack([np.square(exact_vectors - query).sum(1) for query in exact_queries])
    return np.argsort(squares, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("offset", [0.0, 30.0, 3e3])
@pytest.mark.parametrize("scale", [1e-20, 1e-13, 1.0, 1e20, 1e30])
def test_neighbours_equal_brute_force(tmp_path: Path, distance: str, offset: float, scale: float) -> None:
    rng = np.random.default_rng(4)
    vectors = ((rng.normal(size=(600, DIM)) + offset) * scale).astype(np.float32)
    with make_index(tmp_path / "idx", distance) as idx:
        idx.add(items(500), vectors[:500])
        idx.search(vectors[:1])  # the coordinates are chosen here
        idx.add(items(600)[500:], vectors[500:])
        for queries in (vectors[:3], vectors[400:440]):  # FAISS takes another path for many
            hits = idx.search(queries, k=7)
            numbers = [[int(hit.item.id[1:]) for hit in row] for row in hits]
            assert numbers == brute_force(queries, vectors, distance, 7).tolist()


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_scales_that_differ_within_one_index(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(1200, DIM)).astype(np.float32)
    late = np.float32(1e30) * rng.normal(size=(5, DIM)).astype(np.float32)
    with make_index(tmp_path / "idx", "l2", kind) as idx:
        idx.add(items(1200), vectors)
        idx.search(vectors[:1])
        idx.add(items(1205)[1200:], late)
        both = np.concatenate([vectors, late])
        queries = both[1190:]
        numbers = [[int(hit.item.id[1:]) for hit in row] for row in idx.search(queries, k=3, where="id>=i00600")]
        expected = brute_force(queries, both[600:], "l2", 3) + 600
        assert numbers == expected.tolist()


@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_any_layout_is_read(distance: str) -> None:
    plain = np.random.default_rng(0).integers(1, 90, (6, DIM)).astype(np.float32)
    read_only = plain.copy()
    read_only.flags.writeable = False
    layouts: list[Any] = [
        plain.astype(">f4"),
        plain.astype(">f8"),
        plain.astype(np.float16),
        plain.astype(">i2"),
        plain.astype("g"),
        plain[::-1, ::-1].copy()[::-1, ::-1],
        np.asfortranarray(plain),
        np.repeat(plain, 2, axis=1)[:, ::2],
        read_only,
        plain.tolist(),
        torch.from_numpy(plain).bfloat16(),
        torch.from_numpy(plain).requires_grad_(),
    ]
    for layout in layouts:
        read = check_vectors(layout, DIM, distance)
        assert read.flags.c_contiguous
        assert read.dtype == np.dtype("=f4")
        np.testing.assert_array_equal(read, plain)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.full((2, DIM), None), TypeError, "vectors must be real numbers, got object"),
        (np.full((2, DIM), "1"), TypeError, "vectors must be real numbers, got <U1"),
        (np.ones((2, DIM), complex), TypeError, "vectors must be real numbers, got complex128"),
        (np.ma.masked_equal(np.ones((2, DIM)), 1), ValueError, "must not have masked values"),
        (np.full((2, DIM), np.nan), ValueError, "must be finite in fp32"),
        (np.full((2, DIM), np.inf), ValueError, "must be finite in fp32"),
        (np.full((2, DIM), 1e39), ValueError, "must be finite in fp32"),
        (np.zeros((2, DIM)), ValueError, "must not be zero"),
        (np.ones(DIM), ValueError, "must have the shape"),
        ([[1.0], [1.0, 2.0]], ValueError, "vectors must be rows of one length"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_vector_is_refused(values: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_vectors(values, DIM, "cosine")


@pytest.mark.parametrize("scale", [1e-40, 1e-25, 1e37])
def test_short_and_long_vectors_have_a_cosine(scale: float) -> None:
    assert check_vectors(np.full((1, DIM), scale), DIM, "cosine").any()


def test_labels_must_be_texts(tmp_path: Path) -> None:
    with make_index(tmp_path / "idx", "l2") as idx:
        for label in (None, 1, float("nan")):
            with pytest.raises(ValueError, match="label of item a must be a text"):
                idx.add([index.Item("a", "/a.jpg", label)], np.ones((1, DIM)))  # type: ignore[arg-type]
