"""An index on this machine: items and vectors in SQLite, searched in memory by FAISS."""

import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checksums import Finding
from lookalike.index import cache, database
from lookalike.index.base import FileRecord, Index, SecondIndex
from lookalike.index.cache import Cached, read_cache, write_cache
from lookalike.index.database import START, Database, State
from lookalike.index.exact_rescoring import HALF, Accuracy, rescore
from lookalike.index.extra_tables import Others, make_tables
from lookalike.index.filters import Condition
from lookalike.index.frame import Frame
from lookalike.index.items import Hit, Item, Vectors, check_vectors
from lookalike.index.kinds import EXACT_KINDS, check_kind, explain_kind, resolve_kind
from lookalike.index.positions import Positions
from lookalike.index.second_vectors import SecondDatabase
from lookalike.index.stopping import question
from lookalike.index.storage import About
from lookalike.index.structures import Selection, Structure, sample_size

BLOCK = 16_384  # rows read at a time
FEW = 20_000  # up to so many matches, or a tenth of all items, are compared one by one with any kind
VERY_FEW = 2_000  # up to so many matches, all vectors are read where the structure has compressed ones
BY_PRODUCTS = 20  # from so many queries at once FAISS computes distances from products
MOST_DEAD = 0.25  # share of deleted vectors in memory before a rebuild
MOST_NEW = 1.0  # new vectors, relative to those that an IVF was trained on, before a rebuild
CACHE_FROM = 100_000  # vectors from which reading a stored flat structure is faster than reading all rows
FILTERS = 8  # whose matches are remembered until something changes

MOST_FAULTS = 3  # that are logged

logger = logging.getLogger(__name__)

Neighbours = list[tuple[int, float]]  # row number and distance, nearest first
Matches = tuple[State, NDArray[np.int64]]  # of a filter: row numbers, and the state in which they were read


class FaissIndex(Index):
    """An index with the backend "faiss".

    Args:
        path: The folder of the index.
        about: The content of ``index.json``.
    """

    def __init__(self, path: Path, about: About) -> None:
        super().__init__(path, about)
        self._lock = RLock()  # one thread at a time searches: connection and memory belong together
        self._database = self._open_database()
        self._unused: deque[Database] = deque()  # connections, see _own_connection
        self._closed = False
        self._structure: Structure | None = None
        self._state = START
        self._positions = Positions()
        self._selections: dict[tuple[Condition, ...], Selection] = {}  # of the latest filters, until a change
        self._matches: dict[tuple[Condition, ...], Matches] = {}  # of the same filters, brought up to date by a search
        self._labels_at: tuple[State, dict[str, int]] | None = None
        self._forget()
        self._has_bad_trees = False
        self._check_trees()

    def _check_trees(self) -> None:
        """Look for damage that would hide items from filters, unless the collection is so large that it takes long."""
        with suppress(OSError, ValueError):  # the first reading says what is wrong
            if self._database.count() >= CACHE_FROM:
                return
        faults = self._database.tree_faults()
        if faults:
            message = "%s: %s; filters and ids may miss items until the next change, which repairs it if it can"
            logger.warning(message, self._database.path, "; ".join(faults[:MOST_FAULTS]))
        self._has_bad_trees = bool(faults)

    def _open_database(self) -> Database:
        return Database(self.home / database.FILE, self.about.dim)

    def _open_second(self, path: Path) -> "SecondFaissIndex":
        return SecondFaissIndex(self, path)

    def other_vectors(self, ids: Sequence[str]) -> Others:
        """Return the vectors of second models, by fingerprint and id."""
        with self._reading() as reader:
            return reader.other_vectors(ids)

    def make_room(self, second: About) -> None:
        """Create the tables for the vectors of a second model, unless they are there."""
        with self.writing(), self._changing() as writer:
            make_tables(writer.connection, second.fingerprint)

    def close(self) -> None:
        """Close the database and free the memory."""
        with self._lock:
            self._closed = True
            self._database.close()
            self._close_unused()
            self._structure = None

    @contextmanager
    def _reading(self) -> Iterator[Database]:
        """Yield a connection in a read transaction. Each thread has its own, so that a long one holds up nobody."""
        with self._own_connection() as reader, reader.reading(question()):
            yield reader

    @contextmanager
    def _changing(self) -> Iterator[Database]:
        """Yield a connection in a write transaction, for the holder of the writer's lock. Others search meanwhile."""
        with self._own_connection() as writer, writer.writing():
            if self._has_bad_trees:
                writer.rebuild_trees()
            yield writer
        if self._has_bad_trees:
            self._check_trees()

    @contextmanager
    def _own_connection(self) -> Iterator[Database]:
        if self._closed:
            connection = self._database  # says that it is closed
        else:
            try:
                connection = self._unused.pop()
            except IndexError:
                connection = self._open_database()
        try:
            yield connection
        finally:
            self._unused.append(connection)
            if self._closed:
                self._close_unused()

    def _close_unused(self) -> None:
        while self._unused:
            self._unused.pop().close()

    def save(self) -> None:
        """Write the search structure to disk, unless reading the vectors is as fast or it has a frame.

        In a large collection, also index the metadata for filters.
        """
        with self.writing(), self._lock:
            with self._database.reading():
                structure = self._catch_up()
            file = self.home / cache.FILE
            is_small = structure.kind in EXACT_KINDS and len(structure) < CACHE_FROM
            if is_small or not self._frame.is_plain:
                file.unlink(missing_ok=True)
            else:
                positions = self._positions
                write_cache(file, Cached(structure, positions.numbers, positions.alive, self._state))
            is_large = len(structure) >= CACHE_FROM
        if is_large:
            with self.writing(), self._changing() as writer:
                writer.index_metadata()

    def set_kind(self, kind: str) -> None:
        """Change the search structure.

        Args:
            kind: One of ``kinds.KINDS``.
        """
        check_kind(kind, self.distance, "faiss")
        super().set_kind(kind)
        with self._lock:
            self._forget()

    def files_below(self, folder: str) -> dict[str, FileRecord]:
        """Return id -> record of the items with a stamp whose path is below the folder."""
        with self._reading() as reader:
            return reader.files_below(folder)

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Return id -> stamp of the items with these ids; the stamp is empty if none was given."""
        with self._reading() as reader:
            return reader.stamps(ids)

    def all_stamps(self) -> dict[str, str]:
        """Return id -> stamp of all items with a stamp."""
        with self._reading() as reader:
            return reader.all_stamps()

    def restamp(self, stamps: dict[str, str]) -> None:
        """Set new stamps by id; the items stay unchanged."""
        with self.writing(), self._changing() as writer:
            writer.restamp(stamps.items())

    def check(self) -> Finding:
        """Check the structure of the database, the checksums of all rows, and that no row is missing."""
        with self._reading() as reader:
            return reader.check()

    def _add(self, items: list[Item], vectors: Vectors, stamps: list[str], others: Others) -> int:
        with self._changing() as writer:
            return len(items) - writer.insert(items, vectors, stamps, others)

    def _delete(self, ids: list[str]) -> int:
        with self._changing() as writer:
            return writer.remove(ids)

    def _count(self, where: tuple[Condition, ...]) -> int:
        with self._reading() as reader:
            return reader.count(where)

    def _get(self, ids: list[str]) -> dict[str, Item]:
        with self._reading() as reader:
            return reader.items_by_id(ids)

    def _vectors(self, ids: list[str]) -> dict[str, Vectors]:
        with self._reading() as reader:
            numbers = reader.numbers_of(ids)
            stored_ids, vectors = reader.vectors_of(list(numbers.values()))
        return dict(zip(stored_ids.values(), vectors, strict=True))

    def _items(self, where: tuple[Condition, ...], after: str | None, limit: int | None) -> list[Item]:
        with self._reading() as reader:
            return reader.items(where, after, limit)

    def metadata_keys(self) -> set[str]:
        """Return the metadata keys of all items."""
        with self._reading() as reader:
            return reader.metadata_keys()

    def _labels(self) -> dict[str, int]:
        with self._reading() as reader:
            state = reader.state()
            known = self._labels_at
            if known is None or known[0] != state:
                known = self._labels_at = (state, reader.labels())
            return dict(known[1])

    def version(self) -> tuple[Any, ...]:
        """Return a value that changes when an item is added, replaced or deleted, by whatever process."""
        with self._reading() as reader:
            return reader.state()

    def _sample(self, most: int, seed: int) -> Generator[Item, None, None]:
        with self._reading() as reader:
            yield from reader.sample_items(most, seed)

    def _info(self) -> dict[str, Any]:
        with self._lock, self._database.reading():
            structure = self._catch_up()
            why = explain_kind(self.about.kind, self._positions.alive_count)
        return {"kind": structure.kind, "why": why, "recall@10": structure.recall}

    # ---- search

    def _search(self, queries: Vectors, k: int, where: tuple[Condition, ...]) -> list[list[Hit]]:
        matches = self._find_matches(where)
        with self._reading() as reader:
            with self._lock, self._database.reading():
                structure = self._catch_up()
                selection = self._select(where, matches)
                matching = len(self._positions)
                if selection is not None:
                    matching = selection.size
                if matching == 0:
                    return [[] for _ in queries]
                neighbours = self._nearest(structure, queries, min(k, matching), matching, selection)
                if reader.state() != self._state:  # another process has written in between
                    return _as_hits(neighbours, self._database)
            return _as_hits(neighbours, reader)  # may take long: others search meanwhile

    def _nearest(
        self, structure: Structure, queries: Vectors, k: int, matching: int, selection: Selection | None
    ) -> list[Neighbours]:
        """The k nearest of ``matching`` vectors, for each query.

        Asks the structure for a few more than k, measures these again, and asks for more where that does not suffice.
        """
        neighbours: list[Neighbours] = [[] for _ in queries]
        framed = self._frame.apply(queries)
        lengths = np.linalg.norm(framed.astype(np.float64), axis=1)
        scale = 2.0**self._frame.exponent
        is_exact = structure.kind in EXACT_KINDS
        exact = is_exact or (structure.has_vectors and matching <= max(FEW, len(self._positions) // 10))
        rounding = HALF if structure.kind == "flat-fp16" else 0.0
        remaining = list(range(len(queries)))
        direct = len(remaining) < BY_PRODUCTS
        limit = min(structure.candidates(k), matching)
        if not structure.has_vectors and matching <= VERY_FEW:
            limit = matching
        while remaining:
            if limit == matching:
                positions = np.tile(self._selected_positions(selection), (len(remaining), 1))
                reported = np.zeros(positions.shape, np.float32)
            else:
                reported, positions = self._report(structure, framed[remaining], limit, selection, exact, direct)
            candidates = _Candidates(self._database, self._positions.numbers, positions)
            unfinished = []
            for row, query in enumerate(remaining):
                exists = positions[row] >= 0
                numbers, ids, vectors = candidates.at(positions[row][exists])
                accuracy = Accuracy(self.dim, float(lengths[query]), scale, direct, rounding)
                rescored = rescore(queries[query], ids, vectors, reported[row][exists], k, self.distance, accuracy)
                nearest = [numbers[i] for i in rescored.rows]
                neighbours[query] = list(zip(nearest, rescored.distances, strict=True))
                if exact:
                    finished = rescored.complete or limit == matching
                else:
                    finished = len(nearest) == k or limit == matching
                if not finished:
                    unfinished.append(query)
            remaining = unfinished
            limit = min(4 * limit, matching)
            exact = structure.has_vectors
            direct = True
        return neighbours

    def _report(
        self,
        structure: Structure,
        queries: Vectors,
        limit: int,
        selection: Selection | None,
        exact: bool,
        direct: bool,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search the structure; ``direct`` in groups so small that FAISS sums squares of differences."""
        size = BY_PRODUCTS - 1 if direct else len(queries)
        reported, positions = [], []
        for start in range(0, len(queries), size):
            some_reported, some_positions = structure.search(queries[start : start + size], limit, selection, exact)
            reported.append(some_reported)
            positions.append(some_positions)
        return np.concatenate(reported), np.concatenate(positions)

    def _selected_positions(self, selection: Selection | None) -> NDArray[np.int64]:
        if selection is None:
            return np.arange(len(self._positions))
        return np.flatnonzero(selection.mask)

    def _find_matches(self, where: tuple[Condition, ...]) -> Matches | None:
        """The rows that match the filter, before the lock is taken, because it may take long. None for no filter."""
        if not where:
            return None
        known = self._matches.get(where)
        if known is not None:
            return known
        with self._reading() as reader:
            return reader.state(), reader.numbers(where)

    def _select(self, where: tuple[Condition, ...], matches: Matches | None) -> Selection | None:
        """The positions that match the filter; None for all."""
        if matches is None:
            return self._positions.existing()
        selection = self._selections.pop(where, None)
        if selection is None:
            selection = self._positions.select(self._add_new(where, matches))
        _remember(self._selections, where, selection)
        return selection

    def _add_new(self, where: tuple[Condition, ...], matches: Matches) -> NDArray[np.int64]:
        """Add the rows that have been written since the matches were found. Rows never change."""
        state, numbers = matches
        if state != self._state:
            numbers = np.union1d(numbers, self._database.numbers(where, state))
        _remember(self._matches, where, (self._state, numbers))
        return numbers

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
        self._positions = Positions()
        self._selections.clear()
        self._matches.clear()

    def _read_changes(self) -> Structure:
        now = self._database.state()
        if self._structure is None and now != START:
            self._load_cache()
        if self._structure is not None and now == self._state:
            return self._structure
        self._selections.clear()
        structure = self._structure
        if structure is None:
            return self._rebuild(now)
        new_blocks = list(self._database.new_vectors(self._state, BLOCK))
        self._positions.mark_removed(self._database.gone(self._state))
        for numbers, _ in new_blocks:
            self._positions.append(numbers)
        self._state = now
        if self._is_outdated(structure):
            return self._rebuild(now)
        for _, vectors in new_blocks:
            structure.add(self._frame.apply(vectors))
        return structure

    def _is_outdated(self, structure: Structure) -> bool:
        """Whether the structure should be rebuilt instead of extended to all positions."""
        total = len(self._positions)
        alive = self._positions.alive_count
        if structure.kind != resolve_kind(self.about.kind, alive):
            return True
        if total - alive > MOST_DEAD * total:
            return True
        return structure.kind in ("ivf", "ivf-pq") and total > (1 + MOST_NEW) * structure.trained_on

    def _load_cache(self) -> None:
        cached = read_cache(self.home / cache.FILE)
        count = self._database.count()
        if cached is None or cached.structure.index.d != self.dim:
            return
        if cached.structure.kind != resolve_kind(self.about.kind, count):
            return
        new, removed = self._database.count_changes(cached.state)
        if int(cached.alive.sum()) + new != count + removed:  # the cache is of other items
            return
        self._structure, self._state = cached.structure, cached.state
        self._positions = Positions(cached.numbers, cached.alive)

    def _rebuild(self, now: State) -> Structure:
        """Build the structure from all rows, reading them block by block."""
        self._structure = None  # frees its memory
        self._positions = Positions()
        self._frame = Frame.choose(self.distance, self._read_vectors)
        count = self._database.count()
        kind = resolve_kind(self.about.kind, count)
        sample = self._frame.apply(self._database.sample_vectors(sample_size(kind, count)))
        self._structure = Structure.build(kind, self._read_blocks(), sample, count)
        self._state = now
        return self._structure

    def _read_vectors(self) -> Iterator[Vectors]:
        for _, vectors in self._database.new_vectors(START, BLOCK):
            yield vectors

    def _read_blocks(self) -> Iterator[Vectors]:
        """All vectors in the coordinates of the frame; their row numbers are appended to the positions."""
        for numbers, vectors in self._database.new_vectors(START, BLOCK):
            self._positions.append(numbers)
            yield self._frame.apply(vectors)


def _remember(latest: dict[Any, Any], key: Any, value: Any) -> None:
    """Add an entry, or move it to the end; forget the first of too many."""
    latest.pop(key, None)
    latest[key] = value
    if len(latest) > FILTERS:
        del latest[next(iter(latest))]


def _as_hits(neighbours: list[Neighbours], stored: Database) -> list[list[Hit]]:
    numbers: set[int] = set()
    for row in neighbours:
        numbers.update(number for number, _ in row)
    items = stored.items_by_number(sorted(numbers))
    hits = []
    for row in neighbours:
        hits.append([Hit(items[number], distance) for number, distance in row if number in items])
    return hits


class SecondFaissIndex(SecondIndex, FaissIndex):
    """A collection with the vectors of a second model, in tables of the same file.

    Args:
        owner: The index of the collection.
        path: Folder of the second model.
    """

    def __init__(self, owner: FaissIndex, path: Path) -> None:
        self.owner = owner
        super().__init__(path, About.read(path))
        self.writing = owner.writing

    def _check_trees(self) -> None:
        """The owner has done it."""

    def _open_database(self) -> SecondDatabase:
        return SecondDatabase(self.owner.home / database.FILE, self.about.dim, self.about.fingerprint)

    def missing(self) -> list[str]:
        """Return the ids of the items without a vector of this model."""
        with self._reading() as reader:
            assert isinstance(reader, SecondDatabase)
            return reader.missing()

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        """Set the vectors (n, D) of existing items."""
        checked = check_vectors(vectors, self.dim, self.distance, len(ids))
        with self.writing(), self._changing() as writer:
            assert isinstance(writer, SecondDatabase)
            writer.put(ids, checked)

    def drop_orphans(self) -> None:
        """Remove vectors without an item."""
        with self.writing(), self._changing() as writer:
            assert isinstance(writer, SecondDatabase)
            writer.drop_orphans()


class _Candidates:
    """Ids and original vectors of all candidates of several queries, read from the database at once."""

    def __init__(self, stored: Database, numbers: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        self._numbers = numbers
        distinct = np.unique(numbers[positions[positions >= 0]]).tolist()
        self._ids, self._vectors = stored.vectors_of(distinct)
        self._row_of = {number: row for row, number in enumerate(self._ids)}

    def at(self, positions: NDArray[np.int64]) -> tuple[list[int], list[str], Vectors]:
        """Row numbers, ids and vectors of the undamaged candidates at these positions in memory."""
        numbers = [number for number in self._numbers[positions].tolist() if number in self._row_of]
        ids = [self._ids[number] for number in numbers]
        rows = [self._row_of[number] for number in numbers]
        return numbers, ids, self._vectors[rows]
