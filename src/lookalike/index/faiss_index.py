"""An index on this machine: items and vectors in SQLite, searched in memory by FAISS."""

from collections.abc import Sequence
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike.index import cache, database
from lookalike.index.base import FileRecord, Index
from lookalike.index.cache import Cached, read_cache, write_cache
from lookalike.index.database import Database, State
from lookalike.index.exact_rescoring import Accuracy, rescore
from lookalike.index.filters import Condition
from lookalike.index.items import Hit, Item, Vectors
from lookalike.index.kinds import Frame, Structure, resolve_kind
from lookalike.index.storage import About

START = State(0, 0)
BLOCK = 16_384  # rows read at a time
MORE = 16  # candidates in addition to the k
FEW = 20_000  # up to so many matches, or a tenth of all items, are compared one by one with any kind
BY_PRODUCTS = 20  # from so many queries at once FAISS computes distances from products
MOST_DEAD = 0.25  # share of deleted vectors in memory before a rebuild
MOST_NEW = 1.0  # new vectors, relative to those that an IVF was trained on, before a rebuild

Neighbours = list[tuple[int, float]]  # row number and distance, nearest first


class FaissIndex(Index):
    """An index with the backend "faiss".

    Args:
        path: The folder of the index.
        about: The content of ``index.json``.
    """

    def __init__(self, path: Path, about: About) -> None:
        super().__init__(path, about)
        self._lock = RLock()  # one thread at a time: connection and memory belong together
        self._database = Database(path / database.FILE, about.dim)
        self._structure: Structure | None = None
        self._state = START
        self._numbers: NDArray[np.int64]  # row number of each position, ascending
        self._alive: NDArray[np.bool_]  # whether the row still exists
        self._forget()

    def close(self) -> None:
        """Close the database and free the memory."""
        with self._lock:
            self._database.close()
            self._structure = None

    def save(self) -> None:
        """Write the search structure to disk, unless it is flat (reading the vectors is as fast) or has a frame."""
        with self.writing(), self._lock:
            with self._database.reading():
                structure = self._catch_up()
            file = self.path / cache.FILE
            if structure.kind == "flat" or not self._frame.is_plain:
                file.unlink(missing_ok=True)
            else:
                write_cache(file, Cached(structure, self._numbers, self._alive, self._state))

    def set_kind(self, kind: str) -> None:
        """Change the search structure.

        Args:
            kind: "flat", "ivf", "hnsw" or "auto".
        """
        super().set_kind(kind)
        with self._lock:
            self._forget()

    def files_below(self, folder: str) -> dict[str, FileRecord]:
        """Return id -> record of the items with a stamp whose path is below the folder."""
        with self._lock, self._database.reading():
            return self._database.files_below(folder)

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Return id -> stamp of the items with these ids; the stamp is empty if none was given."""
        with self._lock, self._database.reading():
            return self._database.stamps(ids)

    def restamp(self, stamps: dict[str, str]) -> None:
        """Set new stamps by id; the items stay unchanged."""
        with self.writing(), self._lock, self._database.writing():
            self._database.restamp(stamps.items())

    def _add(self, items: list[Item], vectors: Vectors, stamps: list[str]) -> int:
        with self._lock, self._database.writing():
            return len(items) - self._database.insert(items, vectors, stamps)

    def _delete(self, ids: list[str]) -> int:
        with self._lock, self._database.writing():
            return self._database.remove(ids)

    def _count(self, where: tuple[Condition, ...]) -> int:
        with self._lock, self._database.reading():
            return self._database.count(where)

    def _get(self, ids: list[str]) -> dict[str, Item]:
        with self._lock, self._database.reading():
            return self._database.items_by_id(ids)

    def _vectors(self, ids: list[str]) -> dict[str, Vectors]:
        with self._lock, self._database.reading():
            numbers = self._database.numbers_of(ids)
            stored_ids, vectors = self._database.vectors_of(list(numbers.values()))
        return dict(zip(stored_ids.values(), vectors, strict=True))

    def _items(self, where: tuple[Condition, ...], after: str | None, limit: int | None) -> list[Item]:
        with self._lock, self._database.reading():
            return self._database.items(where, after, limit)

    def _labels(self) -> dict[str, int]:
        with self._lock, self._database.reading():
            return self._database.labels()

    def _info(self) -> dict[str, Any]:
        with self._lock, self._database.reading():
            structure = self._catch_up()
        return {"kind": structure.kind, "recall@10": structure.recall}

    # ---- search

    def _search(self, queries: Vectors, k: int, where: tuple[Condition, ...]) -> list[list[Hit]]:
        with self._lock, self._database.reading():
            structure = self._catch_up()
            mask = self._mask(where)
            matching = len(self._numbers)
            if mask is not None:
                matching = int(mask.sum())
            if matching == 0:
                return [[] for _ in queries]
            neighbours = self._nearest(structure, queries, min(k, matching), matching, mask)
            return self._as_hits(neighbours)

    def _nearest(
        self, structure: Structure, queries: Vectors, k: int, matching: int, mask: NDArray[np.bool_] | None
    ) -> list[Neighbours]:
        """The k nearest of ``matching`` vectors, for each query.

        Asks the structure for a few more than k, measures these again, and asks for more where that does not suffice.
        """
        neighbours: list[Neighbours] = [[] for _ in queries]
        framed = self._frame.apply(queries)
        lengths = np.linalg.norm(framed.astype(np.float64), axis=1)
        scale = 2.0**self._frame.exponent
        exact = structure.kind == "flat" or matching <= max(FEW, len(self._numbers) // 10)
        remaining = list(range(len(queries)))
        direct = len(remaining) < BY_PRODUCTS
        limit = min(k + MORE, matching)
        while remaining:
            if limit == matching:
                positions = np.tile(self._matching_positions(mask), (len(remaining), 1))
                reported = np.zeros(positions.shape, np.float32)
            else:
                reported, positions = self._report(structure, framed[remaining], limit, mask, exact, direct)
            candidates = _Candidates(self._database, self._numbers, positions)
            unfinished = []
            for row, query in enumerate(remaining):
                exists = positions[row] >= 0
                numbers, ids, vectors = candidates.at(positions[row][exists])
                accuracy = Accuracy(self.dim, float(lengths[query]), scale, direct)
                rescored = rescore(queries[query], ids, vectors, reported[row][exists], k, self.distance, accuracy)
                nearest = [numbers[i] for i in rescored.rows]
                neighbours[query] = list(zip(nearest, rescored.distances, strict=True))
                if exact:
                    finished = rescored.complete or limit == matching
                else:
                    finished = len(nearest) == k
                if not finished:
                    unfinished.append(query)
            remaining = unfinished
            limit = min(4 * limit, matching)
            exact = direct = True
        return neighbours

    def _report(
        self,
        structure: Structure,
        queries: Vectors,
        limit: int,
        mask: NDArray[np.bool_] | None,
        exact: bool,
        direct: bool,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search the structure; ``direct`` in groups so small that FAISS sums squares of differences."""
        size = BY_PRODUCTS - 1 if direct else len(queries)
        reported, positions = [], []
        for start in range(0, len(queries), size):
            some_reported, some_positions = structure.search(queries[start : start + size], limit, mask, exact)
            reported.append(some_reported)
            positions.append(some_positions)
        return np.concatenate(reported), np.concatenate(positions)

    def _matching_positions(self, mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        if mask is None:
            return np.arange(len(self._numbers))
        return np.flatnonzero(mask)

    def _as_hits(self, neighbours: list[Neighbours]) -> list[list[Hit]]:
        numbers: set[int] = set()
        for row in neighbours:
            numbers.update(number for number, _ in row)
        items = self._database.items_by_number(sorted(numbers))
        hits = []
        for row in neighbours:
            hits.append([Hit(items[number], distance) for number, distance in row if number in items])
        return hits

    def _mask(self, where: tuple[Condition, ...]) -> NDArray[np.bool_] | None:
        """The positions that match the filter; None for all."""
        if where:
            mask = np.zeros_like(self._alive)
            mask[np.searchsorted(self._numbers, self._database.numbers(where))] = True
            return mask
        if self._alive.all():
            return None
        return self._alive

    # ---- keeping memory up to date

    def _catch_up(self) -> Structure:
        """Bring the memory up to date with the database."""
        try:
            return self._read_changes()
        except BaseException:  # a partial update would be wrong
            self._forget()
            raise

    def _forget(self) -> None:
        self._structure = None
        self._frame = Frame(self.distance)
        self._state = START
        self._numbers = np.zeros(0, np.int64)
        self._alive = np.zeros(0, bool)

    def _read_changes(self) -> Structure:
        now = self._database.state()
        if self._structure is None and now != START:
            self._load_cache()
        if self._structure is not None and now == self._state:
            return self._structure
        new_blocks = list(self._database.new_vectors(self._state, BLOCK))
        self._mark_removed(self._database.gone(self._state))
        for numbers, _ in new_blocks:
            self._numbers = np.concatenate([self._numbers, numbers])
            self._alive = np.concatenate([self._alive, np.ones(len(numbers), bool)])
        self._state = now
        structure = self._structure
        if structure is None or self._is_outdated(structure):
            return self._rebuild()
        for _, vectors in new_blocks:
            structure.add(self._frame.apply(vectors))
        return structure

    def _is_outdated(self, structure: Structure) -> bool:
        """Whether the structure should be rebuilt instead of extended to all of ``_numbers``."""
        total = len(self._numbers)
        alive = int(self._alive.sum())
        if structure.kind != resolve_kind(self.about.kind, alive):
            return True
        if total - alive > MOST_DEAD * total:
            return True
        return structure.kind == "ivf" and total > (1 + MOST_NEW) * structure.trained_on

    def _load_cache(self) -> None:
        cached = read_cache(self.path / cache.FILE)
        count = self._database.count()
        if cached is None or cached.structure.index.d != self.dim:
            return
        if cached.structure.kind != resolve_kind(self.about.kind, count):
            return
        new, removed = self._database.count_changes(cached.state)
        if int(cached.alive.sum()) + new != count + removed:  # the cache is of other items
            return
        self._structure, self._numbers, self._alive, self._state = cached

    def _mark_removed(self, removed: NDArray[np.int64]) -> None:
        """Mark rows as dead. Rows that came and went since the last update are not in memory."""
        positions = np.searchsorted(self._numbers, removed)
        inside = positions < len(self._numbers)
        positions = positions[inside]
        in_memory = self._numbers[positions] == removed[inside]
        self._alive[positions[in_memory]] = False

    def _rebuild(self) -> Structure:
        numbers = [np.zeros(0, np.int64)]
        vectors = [np.zeros((0, self.dim), np.float32)]
        for block_numbers, block_vectors in self._database.new_vectors(START, BLOCK):
            numbers.append(block_numbers)
            vectors.append(block_vectors)
        self._numbers = np.concatenate(numbers)
        self._alive = np.ones(len(self._numbers), bool)
        all_vectors = np.concatenate(vectors)
        del vectors
        self._frame = Frame.choose(self.distance, all_vectors)
        all_vectors = self._frame.apply(all_vectors)
        self._structure = Structure.build(resolve_kind(self.about.kind, len(all_vectors)), all_vectors)
        return self._structure


class _Candidates:
    """Ids and original vectors of all candidates of several queries, read from the database at once."""

    def __init__(self, stored: Database, numbers: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        self._numbers = numbers
        distinct = np.unique(numbers[positions[positions >= 0]]).tolist()
        self._ids, self._vectors = stored.vectors_of(distinct)
        self._row_of = {number: row for row, number in enumerate(self._ids)}

    def at(self, positions: NDArray[np.int64]) -> tuple[list[int], list[str], Vectors]:
        """Row numbers, ids and vectors of the candidates at these positions in memory."""
        numbers: list[int] = self._numbers[positions].tolist()
        ids = [self._ids[number] for number in numbers]
        rows = [self._row_of[number] for number in numbers]
        return numbers, ids, self._vectors[rows]
