"""FAISS search structures behind one interface: exact flat, IVF and HNSW.

All use squared Euclidean distances; for the cosine the vectors are normalised, which gives 2 - 2 cos. A vector is
identified by its position 0, 1, 2, ... Vectors are only added; a mask excludes deleted ones.

IVF compares a query with the ``nprobe`` lists whose centres are nearest. HNSW walks a graph and keeps ``efSearch``
candidates. Both parameters are set to the smallest value that finds TARGET of the true neighbours of a sample.
"""

from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike.index.items import Vectors
from lookalike.retrieval.exact import choose_centre, choose_exponent

Kind = Literal["flat", "ivf", "hnsw"]
KINDS = ("auto", "flat", "ivf", "hnsw")
AUTO_FROM = 200_000  # number of vectors from which "auto" means ivf; below, exact search takes milliseconds
LEAST = 1_000  # below, a structure gains nothing and has too little to learn from
ROWS = 4096  # converted at a time
TARGET = 0.98  # recall at NEIGHBOURS
SAMPLE = 200  # queries for measuring recall
NEIGHBOURS = 10
HNSW_LINKS = 32  # per node
HNSW_CONSTRUCTION = 80  # candidates while building
HNSW_EFFORT = (16, 1024)  # smallest and largest efSearch while tuning


def load_faiss() -> Any:
    """Import FAISS when it is needed, because that is slow.

    Raises:
        OSError: If it is not installed.
    """
    try:
        return import_module("faiss")
    except ImportError:
        raise OSError("this index needs FAISS: pip install faiss-cpu") from None


def check_kind(kind: str) -> None:
    """Raise ValueError if a kind is not one of ``KINDS``."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")


def resolve_kind(requested: str, count: int) -> Kind:
    """Choose the structure for ``count`` vectors."""
    if requested == "flat" or count < LEAST:
        return "flat"
    if requested == "hnsw":
        return "hnsw"
    if requested == "ivf" or count >= AUTO_FROM:
        return "ivf"
    return "flat"


class Frame(NamedTuple):
    """The coordinates of a structure: unit vectors for the cosine; for L2 such that fp32 keeps the digits that matter.

    Attributes:
        distance: "cosine" or "l2".
        centre: Subtracted from L2 vectors that are far from zero, (D,).
        exponent: L2 vectors are divided by this power of 2, so that squares neither overflow nor vanish.
    """

    distance: str
    centre: NDArray[np.float64] | None = None
    exponent: int = 0

    @classmethod
    def choose(cls, distance: str, vectors: Vectors) -> "Frame":
        """Choose the frame for vectors (n, D)."""
        if distance == "cosine" or not len(vectors):
            return cls(distance)
        exponent = choose_exponent(float(np.abs(vectors).max()))
        centre = choose_centre(torch.from_numpy(vectors), exponent)
        return cls(distance, None if centre is None else centre.numpy(), exponent)

    @property
    def is_plain(self) -> bool:
        """Whether L2 vectors stay as they are."""
        return self.centre is None and self.exponent == 0

    def apply(self, vectors: Vectors) -> Vectors:
        """Transform vectors (n, D); infinity where they are beyond the frame."""
        if self.distance == "l2" and self.is_plain:
            return vectors
        transformed = np.empty_like(vectors)
        for start in range(0, len(vectors), ROWS):
            rows = vectors[start : start + ROWS].astype(np.float64)
            if self.distance == "cosine":
                rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            elif self.centre is not None:
                rows -= self.centre
            with np.errstate(over="ignore"):
                transformed[start : start + ROWS] = rows * 2.0**-self.exponent
        return transformed


class Structure:
    """A search structure.

    Args:
        kind: Its kind.
        index: The index object of FAISS.
        trained_on: Number of vectors that it was trained on.
        recall: Measured recall; None if it is exact.
    """

    def __init__(self, kind: Kind, index: Any, trained_on: int = 0, recall: float | None = None) -> None:
        self.kind = kind
        self.index = index
        self.trained_on = trained_on
        self.recall = recall

    @classmethod
    def build(cls, kind: Kind, vectors: Vectors) -> "Structure":
        """Build and tune a structure with vectors (n, D), normalised for the cosine."""
        faiss = load_faiss()
        dim = vectors.shape[1]
        if kind == "flat":
            index = faiss.IndexFlatL2(dim)
        elif kind == "hnsw":
            index = faiss.IndexHNSWFlat(dim, HNSW_LINKS, faiss.METRIC_L2)
            index.hnsw.efConstruction = HNSW_CONSTRUCTION
        else:
            lists = max(1, min(int(4 * np.sqrt(len(vectors))), len(vectors) // 40))
            index = faiss.index_factory(dim, f"IVF{lists},Flat", faiss.METRIC_L2)
            index.train(vectors)
        index.add(vectors)
        structure = cls(kind, index, len(vectors))
        if kind != "flat":
            structure._tune(vectors)
        return structure

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def add(self, vectors: Vectors) -> None:
        """Add vectors (n, D) behind the existing ones."""
        self.index.add(vectors)

    def search(
        self, queries: Vectors, k: int, mask: NDArray[np.bool_] | None = None, exact: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the nearest vectors.

        Args:
            queries: Vectors (q, D).
            k: Number of neighbours.
            mask: (n,), the positions to consider. None considers all.
            exact: Compare with all of them, whatever the kind.

        Returns:
            Squared distances and positions, (q, k) each, nearest first; -1 where there are no more.
        """
        faiss = load_faiss()
        selector = None
        if mask is not None:
            bits = np.packbits(mask, bitorder="little")
            selector = faiss.IDSelectorBitmap(bits)
        index = self.index
        params = None
        if self.kind == "ivf":
            probes = index.nlist if exact else index.nprobe
            params = faiss.SearchParametersIVF(sel=selector, nprobe=probes)
        elif self.kind == "hnsw" and not exact:
            params = faiss.SearchParametersHNSW(sel=selector, efSearch=max(index.hnsw.efSearch, 2 * k))
        else:
            if self.kind == "hnsw":
                index = faiss.downcast_index(index.storage)
            if selector is not None:
                params = faiss.SearchParameters(sel=selector)
        # faiss.contrib.torch_utils, which other libraries import, replaces search by one without params.
        search = getattr(index, "search_numpy", index.search)
        squared, positions = search(queries, k, params=params)
        return squared, positions

    def _tune(self, vectors: Vectors) -> None:
        """Double the search effort until the recall reaches TARGET."""
        sample = np.random.default_rng(0).choice(len(vectors), min(SAMPLE, len(vectors)), replace=False)
        _, truth = self.search(vectors[sample], NEIGHBOURS + 1, exact=True)
        effort, most = HNSW_EFFORT
        if self.kind == "ivf":
            effort, most = 1, self.index.nlist
        while True:
            self._set_effort(effort)
            self.recall = self._recall(vectors[sample], sample, truth)
            if self.recall >= TARGET or effort >= most:
                return
            effort = min(2 * effort, most)

    def _set_effort(self, effort: int) -> None:
        if self.kind == "ivf":
            self.index.nprobe = effort
        else:
            self.index.hnsw.efSearch = effort

    def _recall(self, queries: Vectors, positions: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
        """The share of the true neighbours, without the query's own position, that a search finds."""
        _, results = self.search(queries, NEIGHBOURS + 1)
        return mean_recall(positions.tolist(), truth.tolist(), results.tolist())


def mean_recall(queries: list[Any], truth: list[list[Any]], results: list[list[Any]]) -> float:
    """Return the mean share of true neighbours, nearest first and without the query itself, among the results."""
    shares = []
    for query, true_neighbours, returned in zip(queries, truth, results, strict=True):
        expected = [neighbour for neighbour in true_neighbours if neighbour != query][:NEIGHBOURS]
        shares.append(len(set(expected) & set(returned)) / len(expected))
    return float(np.mean(shares))
