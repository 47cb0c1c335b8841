"""The map of the collection, and the process that arranges it.

A map is there at once: from the file of the index if ids and vectors are the same, else as two principal components.
Then a process with a low priority computes the layout that keeps neighbours together. There is at most one, and a
change of the collection ends it: the next request for the map starts anew.
"""

import gzip
import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike.index.base import Index
from lookalike.index.clusters import find_clusters
from lookalike.index.items import Item, Vectors
from lookalike.index.layout import Choice, Method, describe, resolve_method
from lookalike.index.layout_file import FILE, Layout, layout_key, read_layout, write_layout
from lookalike.index.layout_worker import read_result
from lookalike.index.projection import project
from lookalike.server.decoding import environment
from lookalike.server.errors import ApiError
from lookalike.server.limits import MOST_POINTS
from lookalike.server.polygon import UNITS, Corners, inside
from lookalike.server.schemas import MapProgress, name_of

logger = logging.getLogger(__name__)

SEED = 0
COMPRESSION = 1  # higher levels take much longer for little
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}  # of the process: searches need the others
NEAREST = 5  # items whose median is the place of a query


@dataclass
class _Loaded:
    """The items on the map and where they are.

    Attributes:
        state: State of the collection when they were read.
        items: In order of id.
        sampled: Whether these are only some of all items.
        key: See ``layout_key``.
        method: Of the layout.
        points: (n, 2) in whole units of the map.
        target: The method of the layout that is wanted.
    """

    state: Any
    items: list[Item]
    sampled: bool
    key: str
    method: Method
    points: NDArray[np.int64]
    target: Method
    vectors: Vectors | None = None  # until a process has them

    @cached_property
    def rows(self) -> dict[str, int]:
        """Row of each item by its id."""
        return {item.id: row for row, item in enumerate(self.items)}

    @property
    def revision(self) -> str:
        """Changes whenever a point may have moved."""
        return blake2b(f"{self.key} {self.method}".encode(), digest_size=8).hexdigest()


class CollectionMap:
    """The map of one index. All methods may be called from any thread.

    Args:
        idx: The index.
        state: Returns something that differs after a change of the collection.
        choice: The layout.
        stores: Whether a computed layout is written into the folder of the index.
    """

    def __init__(self, idx: Index, state: Callable[[], Any], choice: Choice = "auto", *, stores: bool = True) -> None:
        resolve_method(choice, 0)
        self._idx = idx
        self._state = state
        self._choice: Choice = choice
        self._stores = stores
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="map")
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None
        self._answer: tuple[str, bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._share: float | None = None  # that is done of the layout; None: nothing is computed
        self._failed_key = ""
        self._closed = False

    def answer(self) -> "Future[bytes]":
        """Return the map as compressed JSON, see ``schemas.Map``."""
        return self._thread.submit(self._make_answer)

    def progress(self) -> MapProgress:
        """Report how far the layout is."""
        with self._lock:
            loaded = self._loaded
            if loaded is None:
                return MapProgress(revision="", method="pca", progress=None)
            return MapProgress(revision=loaded.revision, method=loaded.method, progress=self._share)

    def ids_inside(self, revision: str, corners: Corners) -> list[str]:
        """Return the ids of the items in an area.

        Args:
            revision: Of the map on which the area was drawn.
            corners: Its corners.

        Raises:
            ApiError: 409 if the points have moved since.
        """
        with self._lock:
            loaded = self._loaded
        if loaded is None or loaded.revision != revision:
            raise ApiError(409, "map_changed", "the map has changed: select the area again")
        return [loaded.items[row].id for row in np.flatnonzero(inside(loaded.points, corners)).tolist()]

    def place(self, vector: Vectors, idx: Index) -> list[float] | None:
        """Return where a query lies on the map: the median of its nearest items, in [0, 1]; None without a map.

        Args:
            vector: The query (D,).
            idx: The index with vectors of its model.
        """
        with self._lock:
            loaded = self._loaded
        if loaded is None or not loaded.items:
            return None
        nearest = [hit.item.id for hit in idx.search(vector[None], NEAREST)[0]]
        rows = [loaded.rows[item_id] for item_id in nearest if item_id in loaded.rows]
        if not rows:
            return None
        middle: list[float] = (np.median(loaded.points[rows], axis=0) / UNITS).tolist()
        return middle

    def close(self) -> None:
        """Kill the process and stop the thread."""
        with self._lock:
            self._closed = True
            self._stop_process()
        self._thread.shutdown(wait=True)

    def _make_answer(self) -> bytes:
        with self._lock:
            loaded = self._loaded
        if loaded is None or loaded.state != self._state():
            loaded = self._load()
            with self._lock:
                self._replace(loaded)
        with self._lock:
            loaded = self._loaded or loaded
            if self._answer is not None and self._answer[0] == f"{loaded.state} {loaded.revision}":
                return self._answer[1]
        content = gzip.compress(json.dumps(_as_json(loaded)).encode(), COMPRESSION)
        with self._lock:
            self._answer = (f"{loaded.state} {loaded.revision}", content)
        return content

    def _load(self) -> _Loaded:
        """Read items and vectors, and the layout from the file of the index or as two principal components."""
        state = self._state()
        sampled = self._idx.count() > MOST_POINTS
        items, vectors = self._idx.with_vectors(self._idx.sample(MOST_POINTS, SEED, largest=0))
        if self._idx.distance == "cosine":
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        key = layout_key([item.id for item in items], vectors)
        target = resolve_method(self._choice, len(items))
        stored = read_layout(self._idx.home / FILE)
        if stored is not None and (stored.key, stored.method) == (key, target):
            return _Loaded(state, items, sampled, key, target, _in_units(stored.points), target)
        points = _in_units(project(vectors))
        remaining = None if target == "pca" else vectors
        return _Loaded(state, items, sampled, key, "pca", points, target, remaining)

    # ---- the process; these are called with the lock held

    def _replace(self, loaded: _Loaded) -> None:
        """Show what was read. If only labels have changed, points stay where they are, and a process goes on."""
        current = self._loaded
        if current is not None and (current.key, current.target) == (loaded.key, loaded.target):
            current.state, current.items, current.sampled = loaded.state, loaded.items, loaded.sampled
            return
        self._stop_process()
        self._loaded = loaded
        self._share = None
        self._start_process(loaded)

    def _start_process(self, loaded: _Loaded) -> None:
        if self._closed or loaded.vectors is None or loaded.key == self._failed_key:
            return
        self._share = 0.0
        threading.Thread(target=self._arrange, args=(loaded, loaded.vectors), name="layout", daemon=True).start()
        loaded.vectors = None

    def _stop_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _arrange(self, loaded: _Loaded, vectors: Vectors) -> None:
        """Run the process and take over its result. The thread outlives the process: Linux counts it as its parent."""
        content = io.BytesIO()
        np.save(content, vectors, allow_pickle=False)
        with self._lock:
            if self._closed or self._loaded is not loaded:
                return
            process = subprocess.Popen(
                [sys.executable, "-m", "lookalike.index.layout_worker", loaded.target],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**environment(), **ONE_THREAD},
            )
            self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError), process.stdin:  # it was killed
            process.stdin.write(content.getbuffer())
        points = read_result(process.stdout, lambda share: self._report(loaded, share))
        process.stdout.close()
        process.wait()
        self._take_over(loaded, points)

    def _report(self, loaded: _Loaded, share: float) -> None:
        with self._lock:
            if self._loaded is loaded:
                self._share = share

    def _take_over(self, loaded: _Loaded, points: NDArray[np.float64] | None) -> None:
        with self._lock:
            if self._closed or self._loaded is not loaded:
                return
            self._process, self._share = None, None
            if points is None or len(points) != len(loaded.items):
                self._failed_key = loaded.key
                logger.error("the layout of the map could not be computed: it stays two principal components")
                return
            self._loaded = _Loaded(
                loaded.state,
                loaded.items,
                loaded.sampled,
                loaded.key,
                loaded.target,
                _in_units(points),
                loaded.target,
            )
        if not self._stores:
            return
        try:
            write_layout(self._idx.home / FILE, Layout(loaded.target, loaded.key, points))
        except OSError as error:
            logger.warning("the layout of the map is not stored: %s", error)


def _in_units(points: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(points * UNITS).astype(np.int64)


def _as_json(loaded: _Loaded) -> dict[str, Any]:
    labels = sorted({item.label for item in loaded.items})
    numbers = {label: number for number, label in enumerate(labels)}
    clusters = find_clusters(loaded.points / UNITS, [item.label for item in loaded.items])
    return {
        "revision": loaded.revision,
        "method": loaded.method,
        "note": describe(loaded.method, len(loaded.items)),
        "sampled": loaded.sampled,
        "labels": labels,
        "ids": [item.id for item in loaded.items],
        "names": [name_of(item) for item in loaded.items],
        "label": [numbers[item.label] for item in loaded.items],
        "x": loaded.points[:, 0].tolist(),
        "y": loaded.points[:, 1].tolist(),
        "clusters": [cluster._asdict() for cluster in clusters],
    }
