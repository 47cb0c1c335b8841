"""The kinds of search structure, and which of them "auto" means.

| kind        | memory per vector  | search                                                                     |
|-------------|--------------------|----------------------------------------------------------------------------|
| `flat`      | 4 D bytes          | exact: compares with every vector                                          |
| `flat-fp16` | 2 D bytes          | exact as well: half precision only chooses what is measured again          |
| `hnsw`      | 4 D + 270 bytes    | walks a graph and keeps `efSearch` candidates                              |
| `ivf`       | 4 D + 8 bytes      | compares with the `nprobe` lists whose centres are nearest                 |
| `ivf-pq`    | D / 4 + 8 bytes    | as ivf, with compressed vectors; the `depth` best are measured again       |

Milvus has flat, ivf, hnsw and, on a server, diskann. The parameters of a search are set to the smallest values that
find TARGET of the true neighbours of a sample.
"""

from importlib import import_module
from typing import Any, Literal

import numpy as np

Kind = Literal["flat", "flat-fp16", "ivf", "hnsw", "ivf-pq"]
KINDS = ("auto", "flat", "flat-fp16", "ivf", "hnsw", "ivf-pq", "diskann")
EXACT_KINDS = ("flat", "flat-fp16")
IVF_FROM = 200_000  # number of vectors from which "auto" means ivf
PQ_FROM = 2_000_000  # and ivf-pq
LEAST = 1_000  # below, a structure gains nothing and has too little to learn from
TARGET = 0.98  # recall at NEIGHBOURS
SAMPLE = 200  # queries for measuring recall
NEIGHBOURS = 10


def load_faiss() -> Any:
    """Import FAISS when it is needed, because that is slow.

    Raises:
        OSError: If it is not installed.
    """
    try:
        return import_module("faiss")
    except ImportError:
        raise OSError("this index needs FAISS: pip install faiss-cpu") from None


def check_kind(kind: str, distance: str | None = None, backend: str | None = None) -> None:
    """Check a kind.

    Args:
        kind: One of ``KINDS``.
        distance: Distance of the model; None if it is not known yet.
        backend: "faiss" or "milvus"; None if it is not known yet.

    Raises:
        ValueError: If it is another one, or not for this distance.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if kind == "diskann" and backend == "faiss":
        raise ValueError("kind diskann is for a Milvus server only: --store http://host:19530")
    if kind == "flat-fp16" and distance == "l2":
        raise ValueError("flat-fp16 is for models that normalise their vectors; for Euclidean distances use flat")


def resolve_kind(requested: str, count: int) -> Kind:
    """Choose the structure for ``count`` vectors."""
    if count < LEAST:
        return "flat"
    if requested != "auto":
        return requested  # type: ignore[return-value] # checked by check_kind
    if count < IVF_FROM:
        return "flat"
    if count < PQ_FROM:
        return "ivf"
    return "ivf-pq"


def explain_kind(requested: str, count: int) -> str:
    """Say in one line why an index of ``count`` vectors has its kind.

    Examples:
        >>> explain_kind("flat", 5_000)
        'as asked'
    """
    kind = resolve_kind(requested, count)
    if requested == kind:
        return "as asked"
    if count < LEAST:
        return f"fewer than {LEAST:,} vectors are always compared one by one"
    if kind == "flat":
        return f"exact search takes milliseconds up to {IVF_FROM:,} vectors"
    if kind == "ivf":
        return f"from {IVF_FROM:,} vectors ivf takes a fifth of the time of exact search; it is built faster than hnsw"
    return f"from {PQ_FROM:,} vectors memory counts: ivf-pq takes a thirteenth"


def mean_recall(queries: list[Any], truth: list[list[Any]], results: list[list[Any]]) -> float:
    """Return the mean share of true neighbours, nearest first and without the query itself, among the results."""
    shares = []
    for query, true_neighbours, returned in zip(queries, truth, results, strict=True):
        expected = [neighbour for neighbour in true_neighbours if neighbour != query][:NEIGHBOURS]
        shares.append(len(set(expected) & set(returned)) / len(expected))
    return float(np.mean(shares))
