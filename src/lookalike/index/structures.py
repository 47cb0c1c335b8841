"""FAISS search structures behind one interface (see ``kinds.py``).

All use squared Euclidean distances; for the cosine the vectors are normalised, which gives 2 - 2 cos. A vector is
identified by its position 0, 1, 2, ... Vectors are only added; a selection excludes deleted ones. A structure is built
from blocks, so that the vectors need not be in memory a second time.
"""

from collections.abc import Iterable
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.index.items import Vectors
from lookalike.index.kinds import EXACT_KINDS, NEIGHBOURS, SAMPLE, TARGET, Kind, load_faiss, mean_recall

MORE = 16  # candidates in addition to the k
HNSW_LINKS = 32  # per node
HNSW_CONSTRUCTION = 80  # candidates while building
HNSW_EFFORT = (16, 1024)  # smallest and largest efSearch while tuning
MOST_LISTS = 4096  # of IVF; more take longer to learn than they save, up to ten million vectors
PER_LIST = 64  # vectors to learn the centre of a list from
PER_CODE = 40  # vectors to learn each value of a byte from; more take minutes and find no more
CODE_ROUNDS = 10  # of k-means
MOST_CODE = 128  # bytes of a compressed vector
WIDEST_PART = 8  # numbers that share a byte
DEPTHS = (32, 64, 128, 256, 512)  # candidates of compressed vectors to measure again, for NEIGHBOURS


class Selection(NamedTuple):
    """The positions that a search considers.

    Attributes:
        mask: Whether a position counts, (n,).
        bits: The same, packed for FAISS.
        size: How many do.
    """

    mask: NDArray[np.bool_]
    bits: NDArray[np.uint8]
    size: int

    @classmethod
    def of(cls, mask: NDArray[np.bool_]) -> "Selection":
        """Pack a mask (n,)."""
        return cls(mask, np.packbits(mask, bitorder="little"), int(mask.sum()))


class Structure:
    """A search structure.

    Args:
        kind: Its kind.
        index: The index object of FAISS.
        trained_on: Number of vectors that it was built from.
        recall: Measured recall; None if it is exact.
        depth: Candidates to measure again for NEIGHBOURS; 0 for a few more than asked for.
    """

    def __init__(
        self, kind: Kind, index: Any, trained_on: int = 0, recall: float | None = None, depth: int = 0
    ) -> None:
        self.kind = kind
        self.index = index
        self.trained_on = trained_on
        self.recall = recall
        self.depth = depth

    @classmethod
    def build(cls, kind: Kind, blocks: Iterable[Vectors], sample: Vectors, count: int) -> "Structure":
        """Build and tune a structure.

        Args:
            kind: Its kind.
            blocks: All vectors, (b, D) each; normalised for the cosine.
            sample: Some of them (m, D) in random order, ``sample_size(kind, count)`` or all.
            count: How many there are.

        Returns:
            The structure.
        """
        structure = cls(kind, _create(kind, sample, count), count)
        if kind in EXACT_KINDS:
            for block in blocks:
                structure.add(block)
            return structure
        queries = sample[:SAMPLE]
        truth = ExactNeighbours(queries, NEIGHBOURS + 1)
        for block in blocks:
            truth.add(block)
            structure.add(block)
        structure._tune(queries, truth.positions)
        return structure

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @property
    def effort(self) -> int:
        """``nprobe`` or ``efSearch``; 0 for exact kinds."""
        if self.kind in EXACT_KINDS:
            return 0
        return int(self.index.hnsw.efSearch if self.kind == "hnsw" else self.index.nprobe)

    @property
    def has_vectors(self) -> bool:
        """Whether ``search(exact=True)`` measures all distances, because vectors are stored uncompressed."""
        return self.kind != "ivf-pq"

    def add(self, vectors: Vectors) -> None:
        """Add vectors (n, D) behind the existing ones."""
        if len(vectors):
            self.index.add(vectors)

    def candidates(self, k: int) -> int:
        """Return how many candidates to ask for if the k nearest are needed."""
        return max(k + MORE, ceil(self.depth * k / NEIGHBOURS))

    def search(
        self, queries: Vectors, k: int, selection: Selection | None = None, exact: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the nearest vectors.

        Args:
            queries: Vectors (q, D).
            k: Number of neighbours.
            selection: The positions to consider. None considers all.
            exact: Compare with all of them, whatever the kind.

        Returns:
            Squared distances and positions, (q, k) each, nearest first; -1 where there are no more.
        """
        faiss = load_faiss()
        selector = None
        if selection is not None:
            selector = faiss.IDSelectorBitmap(selection.bits)
        index = self.index
        params = None
        if self.kind in ("ivf", "ivf-pq"):
            probes = self._probes(selection, exact)
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

    def _probes(self, selection: Selection | None, exact: bool) -> int:
        """Lists to compare with: more where a selection leaves few vectors in each."""
        lists = int(self.index.nlist)
        if exact:
            return lists
        probes = int(self.index.nprobe)
        if selection is not None:
            probes = ceil(probes * len(self) / max(1, selection.size))
        return min(probes, lists)

    def _tune(self, queries: Vectors, truth: NDArray[np.int64]) -> None:
        """Double the search effort until the recall reaches TARGET."""
        effort, most = HNSW_EFFORT
        if self.kind != "hnsw":
            effort, most = 1, self.index.nlist
        depths = DEPTHS if self.kind == "ivf-pq" else (NEIGHBOURS + 1,)
        while True:
            self._set_effort(effort)
            recalls = self._recalls(queries, truth, depths)
            if recalls[-1] >= TARGET or effort >= most:
                break
            effort = min(2 * effort, most)
        chosen = len(depths) - 1
        while chosen > 0 and recalls[chosen - 1] >= TARGET:
            chosen -= 1
        self.recall = recalls[chosen]
        if self.kind == "ivf-pq":
            self.depth = depths[chosen]

    def _set_effort(self, effort: int) -> None:
        if self.kind == "hnsw":
            self.index.hnsw.efSearch = effort
        else:
            self.index.nprobe = effort

    def _recalls(self, queries: Vectors, truth: NDArray[np.int64], depths: tuple[int, ...]) -> list[float]:
        """The share of the true neighbours, without the query itself, among so many candidates."""
        _, results = self.search(queries, min(depths[-1], len(self)))
        recalls = []
        for depth in depths:
            recalls.append(mean_recall(truth[:, 0].tolist(), truth.tolist(), results[:, :depth].tolist()))
        return recalls


class ExactNeighbours:
    """The nearest vectors of some queries, found by comparing with all, block by block.

    Args:
        queries: Vectors (q, D).
        k: Number of neighbours.
    """

    def __init__(self, queries: Vectors, k: int) -> None:
        self._queries = queries
        self._squared = np.full((len(queries), k), np.inf, np.float32)
        self._positions = np.full((len(queries), k), -1, np.int64)
        self._count = 0

    def add(self, vectors: Vectors) -> None:
        """Compare with the next vectors (n, D)."""
        squared = np.einsum("nd,nd->n", vectors, vectors) - 2 * (self._queries @ vectors.T)  # less the query's square
        k = self._squared.shape[1]
        for row in np.flatnonzero((squared < self._squared[:, -1:]).any(1)):
            nearer = np.flatnonzero(squared[row] < self._squared[row, -1])
            both = np.concatenate([self._squared[row], squared[row, nearer]])
            positions = np.concatenate([self._positions[row], self._count + nearer])
            order = np.argsort(both, kind="stable")[:k]
            self._squared[row], self._positions[row] = both[order], positions[order]
        self._count += len(vectors)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions (q, k) of the nearest so far, nearest first; without the columns that would be empty."""
        return self._positions[:, : self._count]


def sample_size(kind: Kind, count: int) -> int:
    """Return how many vectors a structure of ``count`` learns and tunes from."""
    if kind in EXACT_KINDS:
        return 1
    if kind == "hnsw":
        return SAMPLE
    return max(SAMPLE, PER_LIST * _lists(count))


def _lists(count: int) -> int:
    return max(1, min(int(4 * np.sqrt(count)), count // 40, MOST_LISTS))


def _create(kind: Kind, sample: Vectors, count: int) -> Any:
    """An empty index object of FAISS, trained."""
    faiss = load_faiss()
    dim = sample.shape[1]
    if kind == "flat":
        return faiss.IndexFlatL2(dim)
    if kind == "flat-fp16":
        return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, HNSW_LINKS, faiss.METRIC_L2)
        index.hnsw.efConstruction = HNSW_CONSTRUCTION
        return index
    code = "Flat"
    if kind == "ivf-pq":
        code = _code(dim, len(sample))
    index = faiss.index_factory(dim, f"IVF{_lists(count)},{code}", faiss.METRIC_L2)
    index.cp.max_points_per_centroid = PER_LIST
    if code.startswith("PQ"):
        index.pq.cp.max_points_per_centroid = PER_CODE
        index.pq.cp.niter = CODE_ROUNDS
    index.train(sample)
    return index


def _code(dim: int, learnt_from: int) -> str:
    """How FAISS compresses a vector: four numbers to a byte if that divides ``dim``, else up to ``WIDEST_PART``."""
    parts = next(parts for parts in range(min(MOST_CODE, max(1, dim // 4)), 0, -1) if dim % parts == 0)
    if dim > parts * WIDEST_PART:  # for example a prime number
        return "SQ8"
    bits = 8
    while bits > 4 and learnt_from < PER_CODE * 2**bits:
        bits -= 1
    return f"PQ{parts}x{bits}np"  # np: no polysemous training, which takes minutes and serves another search
