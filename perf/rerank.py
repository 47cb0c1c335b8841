"""What looking twice is worth: each re-ranking beside the plain search, on pictures with labels, leave-one-out.

    python perf/rerank.py cub:CUB_200_2011 [--model RUN | --model efficientnet_lite0 --size 128] [--json FILE]
    python perf/rerank.py --embeddings VECTORS.npy --labels LABELS.npy

Every picture of the test split, or of all if there is none, is searched for among all others. It takes no part on the
other side: it is not among its own neighbours for the expansion, every reference is augmented without it, and for
k-reciprocal neighbours it is one of the set, once, at no distance from itself that could be found. The settings are the
defaults of lookalike search and were not chosen on these pictures. P@1 is also R@1.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike import data, retrieval_metrics
from lookalike.index.reranking import ALPHA, K1, K2, LAMBDA, N
from lookalike.retrieval.rerank import alpha_query_expansion, k_reciprocal, nearest_others

Array = NDArray[np.float32]
BLOCK = 1024
METRICS = ("P@1", "P@R", "MAP@R")


def main(argv: Sequence[str] | None = None) -> None:
    settings = _settings(argv)
    vectors, labels, what = _vectors(settings)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    n = min(N, len(vectors) - 2)
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "plain": lambda: retrieval_metrics(vectors, labels),
        f"expansion (n={n}, alpha={ALPHA:g})": lambda: expanded(vectors, labels, n),
        f"augmentation (n={n}, alpha={ALPHA:g})": lambda: figures(-augmented_scores(vectors, n), labels),
        f"reciprocal (k1={K1}, k2={K2}, lambda={LAMBDA:g})": lambda: figures(
            k_reciprocal(None, vectors, K1, K2, LAMBDA), labels
        ),
    }
    print(f"{what}: {len(vectors):,} pictures of {len(np.unique(labels)):,} classes, leave-one-out, in percent")
    print(f"{'':36} {'P@1':>7} {'P@R':>7} {'MAP@R':>7} {'seconds':>8}")
    report: dict[str, Any] = {"what": what, "pictures": len(vectors), "ways": {}}
    for name, way in ways.items():
        start = time.process_time()
        found = way()
        seconds = time.process_time() - start
        print(f"{name:36} " + " ".join(f"{100 * found[metric]:7.2f}" for metric in METRICS) + f" {seconds:8.1f}")
        report["ways"][name] = {**{metric: found[metric] for metric in METRICS}, "seconds": seconds}
    if settings.json:
        settings.json.write_text(json.dumps(report, indent=2) + "\n")


def expanded(vectors: Array, labels: NDArray[Any], n: int) -> dict[str, float]:
    near = nearest_others(vectors, n)
    drawn = np.concatenate(
        [alpha_query_expansion(vectors[rows], vectors, near[rows], ALPHA, n) for rows in _blocks(len(vectors))]
    )
    ids = np.arange(len(vectors))
    return retrieval_metrics(drawn, labels, vectors, labels, query_ids=ids, reference_ids=ids)


def augmented_scores(vectors: Array, n: int) -> Array:
    """(n, n): the cosine of every query with every reference, the reference augmented without the query."""
    near = nearest_others(vectors, n + 1)

    def augmented(lists: NDArray[np.int64]) -> Array:
        blocks = [
            alpha_query_expansion(vectors[rows], vectors, lists[rows], ALPHA, n) for rows in _blocks(len(vectors))
        ]
        return np.concatenate(blocks)

    scores = vectors @ augmented(near[:, :n]).T
    references = np.arange(len(vectors))
    for place in range(n):  # a reference that has the query here has the next one instead
        others = augmented(np.delete(near, place, axis=1))
        queries = near[:, place]
        scores[queries, references] = np.einsum("rd,rd->r", vectors[queries], others)
    np.fill_diagonal(scores, -np.inf)
    return scores


def figures(distances: Array, labels: NDArray[Any]) -> dict[str, float]:
    """As retrieval_metrics, from distances (n, n) with infinity where a picture meets itself."""
    totals = dict.fromkeys(METRICS, 0.0)
    counted = 0
    for i, row in enumerate(distances):
        relevant = int((labels == labels[i]).sum()) - 1
        if relevant == 0:
            continue
        counted += 1
        hits = labels[np.argsort(row, kind="stable")[:relevant]] == labels[i]
        totals["P@1"] += hits[0]
        totals["P@R"] += hits.mean()
        totals["MAP@R"] += float((hits * np.cumsum(hits) / np.arange(1, relevant + 1)).mean())
    return {name: total / counted for name, total in totals.items()}


def _blocks(count: int) -> list[slice]:
    return [slice(start, start + BLOCK) for start in range(0, count, BLOCK)]


def _settings(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="whatever lookalike evaluate takes")
    parser.add_argument("--model", default="efficientnet_lite0", help="folder of a run, or the name of a backbone")
    parser.add_argument("--size", type=int, help="side of the input of a backbone given by name")
    parser.add_argument("--embeddings", type=Path, help="vectors (n, D) of your own, .npy")
    parser.add_argument("--labels", type=Path, help="their labels (n,), .npy")
    parser.add_argument(
        "--keep", type=Path, help="write vectors and labels here, to go on from: NAME.npy, NAME-labels.npy"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    settings = parser.parse_args(argv)
    if (settings.data is None) == (settings.embeddings is None) or bool(settings.embeddings) != bool(settings.labels):
        parser.error("give DATA, or --embeddings with --labels")
    return settings


def _vectors(settings: argparse.Namespace) -> tuple[Array, NDArray[Any], str]:
    if settings.embeddings:
        vectors = np.load(settings.embeddings, allow_pickle=False).astype(np.float32)
        return vectors, np.load(settings.labels, allow_pickle=False), settings.embeddings.name
    from lookalike.inference import model as trained

    if Path(settings.model).exists():
        model = trained.load(settings.model)
    else:
        model = trained.untrained(settings.model, size=settings.size)
    pictures = data.load(settings.data, check=False)
    if pictures.splits is not None and "test" in pictures.splits:
        pictures = pictures.split("test")
    vectors = model.embed_table(pictures)
    if settings.keep:
        np.save(settings.keep.with_suffix(".npy"), vectors)
        np.save(settings.keep.with_name(f"{settings.keep.stem}-labels.npy"), pictures.labels)
    return vectors, pictures.labels, f"{pictures.name}, {settings.model}"


if __name__ == "__main__":
    main()
