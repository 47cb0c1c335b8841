"""Layouts: neighbours against all pairs, what they keep of them, their process and their file."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lookalike.index import layout
from lookalike.index.layout import arrange, describe, nearest_neighbours, resolve_method
from lookalike.index.layout_file import Layout, layout_key, read_layout, write_layout
from lookalike.index.layout_worker import read_result
from lookalike.index.projection import principal_components, project


def crowd(count: int = 300, dim: int = 20, groups: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    group = rng.integers(0, groups, count)
    vectors = (3 * rng.normal(size=(groups, dim))[group] + rng.normal(size=(count, dim))).astype(np.float32)
    return vectors, group


def kept(vectors: np.ndarray, points: np.ndarray, k: int = 10) -> float:
    """The part of the k nearest vectors that are among the k nearest points."""
    near = []
    for each in (vectors.astype(np.float64), points):
        distances = ((each[:, None] - each[None]) ** 2).sum(2) + np.diag(np.full(len(each), np.inf))
        near.append(distances.argsort(1)[:, :k])
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(*near, strict=True)]))


def test_neighbours_equal_all_pairs() -> None:
    vectors, _ = crowd()
    vectors[7] = vectors[3]  # copies
    indices, distances = nearest_neighbours(vectors, 12)
    assert (indices[:, 0] == np.arange(300)).all()
    exact = np.sqrt(((vectors[:, None].astype(np.float64) - vectors[None]) ** 2).sum(2))
    np.testing.assert_allclose(distances, np.sort(exact, 1)[:, :12], atol=1e-3)
    np.testing.assert_allclose(np.take_along_axis(exact, indices, 1), distances, atol=1e-3)


def test_neighbours_from_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "EXACT", 1000)
    vectors, _ = crowd(3000)
    reports: list[float] = []
    indices, _ = nearest_neighbours(vectors, 12, reports.append)
    monkeypatch.setattr(layout, "EXACT", 3000)
    exact, _ = nearest_neighbours(vectors, 12)
    assert (indices[:, 0] == np.arange(3000)).all()
    assert indices.min() >= 0
    assert np.mean([len(set(a) & set(b)) / 12 for a, b in zip(indices, exact, strict=True)]) > 0.8
    assert reports == sorted(reports)
    assert reports[-1] == 1


def test_principal_components_equal_singular_vectors() -> None:
    vectors, _ = crowd(60)
    left, values, _ = np.linalg.svd(vectors - vectors.mean(0, dtype=np.float64), full_matrices=False)
    expected = (left * values)[:, :5]
    found = principal_components(vectors, 5)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-4)
    assert principal_components(vectors[:0], 2).shape == (0, 2)


def test_tsne_keeps_neighbours_and_repeats() -> None:
    vectors, _ = crowd(200)
    points = arrange(vectors, "tsne")
    assert points.min() >= 0
    assert points.max() <= 1
    assert kept(vectors, points) > kept(vectors, project(vectors)) + 0.1
    np.testing.assert_array_equal(arrange(vectors, "tsne"), points)


@pytest.mark.slow
def test_umap_in_its_process() -> None:
    pytest.importorskip("umap")
    vectors, _ = crowd(300)
    content = io.BytesIO()
    np.save(content, vectors)
    process = subprocess.Popen(
        [sys.executable, "-m", "lookalike.index.layout_worker", "umap"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin:
        process.stdin.write(content.getvalue())
    reports: list[float] = []
    points = read_result(process.stdout, reports.append)
    process.stdout.close()
    assert process.wait() == 0
    assert points is not None
    assert kept(vectors, points) > kept(vectors, project(vectors)) + 0.1
    assert len(reports) > 50  # every half per cent
    assert reports == sorted(reports)
    assert 0 < reports[0] <= reports[-1] == 1


def test_a_killed_process_gives_nothing() -> None:
    assert read_result(io.BytesIO(b"0.25\n0.5\n"), lambda _: None) is None
    assert read_result(io.BytesIO(b"0.25\npoints\n\x93NUMPY"), lambda _: None) is None


def test_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "has_umap", lambda: False)
    assert [resolve_method("auto", n) for n in (10, 100, 5000, 5001)] == ["pca", "tsne", "tsne", "pca"]
    assert "lookalike[map]" in describe("pca", 5001)
    assert "lookalike[map]" not in describe("pca", 10)
    with pytest.raises(ValueError, match=r"pip install 'lookalike\[map\]'"):
        resolve_method("umap", 10)
    with pytest.raises(ValueError, match="one of auto, umap, tsne, pca, got 'grid'"):
        resolve_method("grid", 10)  # type: ignore[arg-type]
    monkeypatch.setattr(layout, "has_umap", lambda: True)
    assert [resolve_method("auto", n) for n in (10, 100, 2000, 2001)] == ["pca", "tsne", "tsne", "umap"]


def test_file(tmp_path: Path) -> None:
    vectors, _ = crowd(30)
    ids = [f"item{row}" for row in range(30)]
    stored = Layout("umap", layout_key(ids, vectors), project(vectors))
    file = tmp_path / "map.bin"
    assert read_layout(file) is None
    write_layout(file, stored)
    found = read_layout(file)
    assert found is not None
    assert found[:2] == stored[:2]
    np.testing.assert_allclose(found.points, stored.points, atol=1e-6)
    content = file.read_bytes()
    for place in (3, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert read_layout(file) is None
    file.write_bytes(content[:-8])
    assert read_layout(file) is None
    assert len({layout_key(ids, vectors), layout_key(ids[::-1], vectors), layout_key(ids, vectors + 1)}) == 3
