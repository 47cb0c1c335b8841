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
from lookalike.index.exact_rescoring import Rescored, rescore
from lookalike.index.filters import Condition
from lookalike.index.items import Hit, Item, Vectors
from lookalike.index.kinds import Structure, chosen_kind, normalised
from lookalike.index.storage import About

START = State(0, 0)
BLOCK = 16_384  # rows read at a time
MORE = 16  # candidates beyond the k
FEW = 20_000  # as many as this, or a tenth of all, are compared one by one, whatever the structure
MOST_DEAD = 0.25  # of the places in memory
MOST_NEW = 1.0  # times what a structure was learnt from


class FaissIndex(Index):
    def __init__(self, path: Path, about: About) -> None:
        super().__init__(path, about)
        self._guard = RLock()  # one thread at a time: the connection and the memory belong together
        self._database = Database(path / database.FILE, about.dim)
        self._structure: Structure | None = None
        self._numbers: NDArray[np.int64]  # of each place, ascending
        self._alive: NDArray[np.bool_]  # whether its item is still there
        self._forget()

    def close(self) -> None:
        with self._guard:
            self._database.close()
            self._structure = None

    def save(self) -> None:
        with self.writing(), self._guard:
            with self._database.reading():
                structure = self._catch_up()
            file = self.path / cache.FILE
            if structure.kind == "flat":  # reading the vectors again is as fast
                file.unlink(missing_ok=True)
            else:
                write_cache(file, Cached(structure, self._numbers, self._alive, self._state))

    def set_kind(self, kind: str) -> None:
        super().set_kind(kind)
        with self._guard:
            self._forget()

    def files_below(self, folder: str) -> dict[str, FileRecord]:
        with self._guard, self._database.reading():
            return self._database.files_below(folder)

    def restamp(self, stamps: dict[str, str]) -> None:
        with self.writing(), self._guard, self._database.writing():
            self._database.restamp(stamps.items())

    def _add(self, items: list[Item], vectors: Vectors, stamps: list[str]) -> int:
        with self._guard, self._database.writing():
            return len(items) - self._database.insert(items, vectors, stamps)

    def _delete(self, ids: list[str]) -> int:
        with self._guard, self._database.writing():
            return self._database.remove(ids)

    def _count(self, where: tuple[Condition, ...]) -> int:
        with self._guard, self._database.reading():
            return self._database.count(where)

    def _get(self, ids: list[str]) -> dict[str, Item]:
        with self._guard, self._database.reading():
            return self._database.items_of("id", ids)

    def _vectors(self, ids: list[str]) -> dict[str, Vectors]:
        with self._guard, self._database.reading():
            numbers = self._database.numbers_of(ids)
            rows, vectors = self._database.vectors_of(list(numbers.values()))
        return dict(zip(rows.values(), vectors, strict=True))

    def _items(self, where: tuple[Condition, ...], after: str | None, limit: int | None) -> list[Item]:
        with self._guard, self._database.reading():
            return self._database.items(where, after, limit)

    def _labels(self) -> dict[str, int]:
        with self._guard, self._database.reading():
            return self._database.labels()

    def _info(self) -> dict[str, Any]:
        with self._guard, self._database.reading():
            structure = self._catch_up()
        return {"kind": structure.kind, "recall@10": structure.recall}

    def _search(self, queries: Vectors, k: int, where: tuple[Condition, ...]) -> list[list[Hit]]:
        with self._guard, self._database.reading():
            structure = self._catch_up()
            mask = self._mask(where)
            matching = len(self._numbers) if mask is None else int(mask.sum())
            if matching == 0:
                return [[] for _ in queries]
            exact = structure.kind == "flat" or matching <= max(FEW, len(self._numbers) // 10)
            found = self._nearest(structure, queries, min(k, matching), matching, mask, exact)
            numbers = {number for row in found for number, _ in row}
            items = self._database.items_of("number", sorted(numbers))
            return [[Hit(items[number], distance) for number, distance in row] for row in found]

    def _nearest(
        self,
        structure: Structure,
        queries: Vectors,
        k: int,
        matching: int,
        mask: NDArray[np.bool_] | None,
        exact: bool,
    ) -> list[list[tuple[int, float]]]:
        """Numbers and distances of the k nearest of ``matching`` places."""
        found: list[list[tuple[int, float]]] = [[] for _ in queries]
        left = list(range(len(queries)))
        asked = min(k + MORE, matching)
        while left:
            near, places = structure.search(normalised(queries[left], self.distance), asked, mask, exact)
            ids, vectors, where_is = self._candidates(places)
            again = []
            for row, query in enumerate(left):
                there = places[row] >= 0
                rows = [where_is[int(self._numbers[place])] for place in places[row][there]]
                rescored = self._rescore(queries[query], rows, ids, vectors, near[row][there], k)
                if (not exact and len(rescored.places) < k) or (exact and not rescored.complete and asked < matching):
                    again.append(query)
                numbers = [int(self._numbers[place]) for place in places[row][there]]
                found[query] = [
                    (numbers[place], distance)
                    for place, distance in zip(rescored.places, rescored.distances, strict=True)
                ]
            left, asked, exact = again, min(4 * asked, matching), True
        return found

    def _candidates(self, places: NDArray[np.int64]) -> tuple[list[str], Vectors, dict[int, int]]:
        """Ids and vectors of all candidates, and in which row of these a number stands."""
        numbers = np.unique(self._numbers[places[places >= 0]]).tolist()
        rows, vectors = self._database.vectors_of(numbers)
        return list(rows.values()), vectors, {number: row for row, number in enumerate(rows)}

    def _rescore(
        self, query: Vectors, rows: list[int], ids: Sequence[str], vectors: Vectors, near: NDArray[np.float32], k: int
    ) -> Rescored:
        return rescore(query, [ids[row] for row in rows], vectors[rows], near, k, self.distance)

    def _mask(self, where: tuple[Condition, ...]) -> NDArray[np.bool_] | None:
        """The places that count; None: all."""
        if not where:
            return None if self._alive.all() else self._alive
        mask = np.zeros_like(self._alive)
        mask[np.searchsorted(self._numbers, self._database.numbers(where))] = True
        return mask

    def _catch_up(self) -> Structure:
        """Memory as the database is now."""
        try:
            return self._caught_up()
        except BaseException:  # half of it would be worse than none
            self._forget()
            raise

    def _forget(self) -> None:
        self._structure, self._state = None, START
        self._numbers, self._alive = np.zeros(0, np.int64), np.zeros(0, bool)

    def _caught_up(self) -> Structure:
        now = self._database.state()
        if self._structure is None and now != START:
            self._from_cache()
        if self._structure is not None and now == self._state:
            return self._structure
        fresh = list(self._database.new_vectors(self._state, BLOCK))
        self._mark(self._database.gone(self._state))
        for numbers, _ in fresh:
            self._numbers = np.concatenate([self._numbers, numbers])
            self._alive = np.concatenate([self._alive, np.ones(len(numbers), bool)])
        self._state = now
        alive = int(self._alive.sum())
        structure = self._structure
        new = sum(len(numbers) for numbers, _ in fresh)
        if (
            structure is None
            or structure.kind != chosen_kind(self.about.kind, alive)
            or len(self._numbers) - alive > MOST_DEAD * len(self._numbers)
            or (structure.kind == "ivf" and len(structure) + new > (1 + MOST_NEW) * structure.trained_on)
        ):
            return self._rebuild()
        for _, vectors in fresh:
            structure.add(normalised(vectors, self.distance))
        return structure

    def _from_cache(self) -> None:
        cached = read_cache(self.path / cache.FILE)
        wanted = chosen_kind(self.about.kind, self._database.count())
        if cached is None or cached.structure.index.d != self.dim or cached.structure.kind != wanted:
            return
        self._structure, self._numbers, self._alive, self._state = cached
        fresh, gone = self._database.since(self._state)
        if int(self._alive.sum()) + fresh != self._database.count() + gone:  # of other items than these
            self._forget()

    def _mark(self, gone: NDArray[np.int64]) -> None:
        """Numbers that came and went between two looks are in neither."""
        places = np.searchsorted(self._numbers, gone)
        inside = places < len(self._numbers)
        places = places[inside]
        self._alive[places[self._numbers[places] == gone[inside]]] = False

    def _rebuild(self) -> Structure:
        blocks = list(self._database.new_vectors(START, BLOCK))
        self._numbers = np.concatenate([np.zeros(0, np.int64), *(numbers for numbers, _ in blocks)])
        self._alive = np.ones(len(self._numbers), bool)
        empty = np.zeros((0, self.dim), np.float32)
        vectors = np.concatenate([empty, *(normalised(some, self.distance) for _, some in blocks)])
        del blocks
        self._structure = Structure.build(chosen_kind(self.about.kind, len(vectors)), vectors)
        return self._structure
