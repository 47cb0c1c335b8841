"""The three search structures of FAISS under one roof: exact flat, IVF and HNSW.

All measure squared Euclidean distances; where the cosine is meant, of normalised vectors, for which it is 2 - 2 cos.
Vectors are known by their place, 0, 1, 2, ..., and only added; a mask says which places count.

IVF compares a query with the lists whose centres are nearest, ``nprobe`` of them; HNSW walks a graph and keeps
``efSearch`` candidates. Both are set to the least that finds TARGET of the true neighbours of some of the vectors.
"""

from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lookalike.index.items import Vectors

Kind = Literal["flat", "ivf", "hnsw"]
KINDS = ("auto", "flat", "ivf", "hnsw")
AUTO_FROM = 200_000  # from so many vectors on, auto means ivf: below, comparing with all takes milliseconds
LEAST = 1_000  # below, there is nothing to gain from a structure, nor enough to learn one from
TARGET = 0.98
SAMPLE = 200
NEIGHBOURS = 10
LINKS, BUILDING = 32, 80  # of HNSW: links of a node, candidates while building


def load_faiss() -> Any:
    """Late, for it takes a while; as Any, for its stubs lack much of what it has."""
    try:
        return import_module("faiss")
    except ImportError:
        raise OSError("this index needs FAISS: pip install faiss-cpu") from None


def check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return kind


def chosen_kind(asked: str, count: int) -> Kind:
    if asked == "flat" or count < LEAST:
        return "flat"
    if asked == "auto":
        return "ivf" if count >= AUTO_FROM else "flat"
    return "ivf" if asked == "ivf" else "hnsw"


class Structure:
    """``index`` is FAISS's, learnt from ``trained_on`` vectors; ``recall`` is as measured, None if exact."""

    def __init__(self, kind: Kind, index: Any, trained_on: int = 0, recall: float | None = None) -> None:
        self.kind, self.index, self.trained_on, self.recall = kind, index, trained_on, recall

    @classmethod
    def build(cls, kind: Kind, vectors: Vectors) -> "Structure":
        faiss = load_faiss()
        dim = vectors.shape[1]
        if kind == "flat":
            index = faiss.IndexFlatL2(dim)
        elif kind == "hnsw":
            index = faiss.IndexHNSWFlat(dim, LINKS, faiss.METRIC_L2)
            index.hnsw.efConstruction = BUILDING
        else:
            lists = max(1, min(int(4 * np.sqrt(len(vectors))), len(vectors) // 40))
            index = faiss.index_factory(dim, f"IVF{lists},Flat", faiss.METRIC_L2)
            index.train(vectors)
        index.add(vectors)
        made = cls(kind, index, len(vectors))
        if kind != "flat":
            made._tune(vectors)
        return made

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def add(self, vectors: Vectors) -> None:
        self.index.add(vectors)

    def search(
        self, queries: Vectors, k: int, mask: NDArray[np.bool_] | None = None, exact: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(q, D) -> squared distances and places, (q, k), nearest first; -1 where there was nothing more.

        ``mask`` (n,): the places that count. ``exact`` compares with all of them.
        """
        faiss = load_faiss()
        selector = None
        if mask is not None:
            bits = np.packbits(mask, bitorder="little")
            selector = faiss.IDSelectorBitmap(bits)
        index = self.index
        if self.kind == "hnsw" and exact:
            index = faiss.downcast_index(index.storage)
        if self.kind == "ivf":
            probes = index.nlist if exact else index.nprobe
            settings = faiss.SearchParametersIVF(sel=selector, nprobe=probes)
        elif self.kind == "hnsw" and not exact:
            settings = faiss.SearchParametersHNSW(sel=selector, efSearch=max(index.hnsw.efSearch, 2 * k))
        else:
            settings = faiss.SearchParameters(sel=selector) if selector is not None else None
        # faiss.contrib.torch_utils, which other libraries import, replaces the search by one that takes no settings.
        found, places = getattr(index, "search_numpy", index.search)(queries, k, params=settings)
        return found, places

    def _tune(self, vectors: Vectors) -> None:
        chosen = np.random.default_rng(0).choice(len(vectors), min(SAMPLE, len(vectors)), replace=False)
        _, truth = self.search(vectors[chosen], NEIGHBOURS + 1, exact=True)
        most = self.index.nlist if self.kind == "ivf" else 1024
        effort = 1 if self.kind == "ivf" else 16
        while True:
            self._set(effort)
            self.recall = self._recall(vectors[chosen], chosen, truth)
            if self.recall >= TARGET or effort >= most:
                return
            effort = min(2 * effort, most)

    def _set(self, effort: int) -> None:
        if self.kind == "ivf":
            self.index.nprobe = effort
        else:
            self.index.hnsw.efSearch = effort

    def _recall(self, queries: Vectors, own: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
        """The share of the ten true neighbours, other than the vector itself, that are found."""
        _, found = self.search(queries, NEIGHBOURS + 1)
        shares = []
        for itself, right, got in zip(own.tolist(), truth.tolist(), found.tolist(), strict=True):
            wanted = [place for place in right if place != itself][:NEIGHBOURS]
            shares.append(len(set(wanted) & set(got)) / len(wanted))
        return float(np.mean(shares))


def normalised(vectors: Vectors, distance: str) -> Vectors:
    if distance != "cosine":
        return vectors
    return vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True).astype(np.float32)
