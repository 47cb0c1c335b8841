"""The benchmark of re-ranking runs, measures as retrieval_metrics does, and keeps the query out of the references."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lookalike import retrieval_metrics
from lookalike.retrieval.rerank import augment_database


def test_runs_and_writes_json(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 7)
    vectors = chance.normal(size=(6, 5))[labels] + chance.normal(size=(42, 5))
    np.save(tmp_path / "v.npy", vectors)
    np.save(tmp_path / "l.npy", labels)
    words = ["--embeddings", str(tmp_path / "v.npy"), "--labels", str(tmp_path / "l.npy")]
    benchmark.main([*words, "--json", str(tmp_path / "r.json")])
    ways = json.loads((tmp_path / "r.json").read_text())["ways"]
    assert [name.split()[0] for name in ways] == ["plain", "expansion", "augmentation", "reciprocal"]
    right = retrieval_metrics(vectors, labels)
    assert ways["plain"]["MAP@R"] == right["MAP@R"]
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    apart = -unit @ unit.T
    np.fill_diagonal(apart, np.inf)
    for name, value in benchmark.figures(apart, labels).items():
        assert value == pytest.approx(right[name])
    assert "leave-one-out" in capsys.readouterr().out


def test_references_are_augmented_without_the_query(benchmark: ModuleType) -> None:
    vectors = np.random.default_rng(1).normal(size=(15, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = benchmark.augmented_scores(vectors, 3)
    for query in range(15):
        others = np.delete(np.arange(15), query)
        right = augment_database(vectors[others], 3, benchmark.ALPHA) @ vectors[query]
        np.testing.assert_allclose(scores[query, others], right, atol=1e-5)
        assert scores[query, query] == -np.inf
