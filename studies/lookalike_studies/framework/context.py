"""Where a study works: its folder, data and display, and a cache of its slow parts.

Parts that do not depend on each other go to ``Context.train_all``, which lets an executor compute them in other
processes or on other machines. This process alone writes the cache, and it remembers what is done.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookalike._util.files import replacing
from lookalike._util.progress import Display
from lookalike.executors import Executor

Tick = Callable[[int], Any]  # called with the number of finished steps
Values = Mapping[str, Any]  # of a part: arrays, and values that JSON can hold
PARTS_VERSION = 3  # raise it when the same settings would give other parts
OTHER_VALUES, SECONDS = "json", "seconds of the part"  # entries of a cache file beside the arrays


class Part(NamedTuple):
    """A part that does not depend on others; an executor may compute it in another process."""

    name: str  # as for ``Context.cached``
    steps: int  # length of its progress bar
    # Trains and measures. A module's function or a ``functools.partial`` of one, as it may run in another process.
    train: Callable[[Tick], Values]
    title: str = ""  # title of the bar; "": the name


class Context:
    """Folder, data, display and cache of one run of a study."""

    def __init__(
        self,
        out: Path,
        display: Display,
        data: str | None = None,
        settings: Mapping[str, Any] | None = None,
        version: str = "",
        executor: Executor | None = None,
    ) -> None:
        """``settings`` and ``version`` (of study and data) are part of the cache key."""
        self.out, self.display = out, display
        self.data = data  # value of --data
        self.executor = executor  # where independent parts run; None: in this process
        self.earlier_seconds = 0.0  # how long the parts took that came from the cache
        self._settings, self._version = dict(settings or {}), version

    def cached(self, name: str, compute: Callable[[], Values], *, ignore: Collection[str] = ()) -> dict[str, Any]:
        """Compute arrays and values for JSON, or read them from ``parts/`` if an earlier run has computed them.

        Settings in ``ignore`` are excluded from the cache key. Tuples come back as lists.
        """
        file = self._file(name, ignore)
        if file.exists():
            values, seconds = _read_part(file)
            self.earlier_seconds += seconds
            return values
        started = time.monotonic()
        values = dict(compute())
        _write_part(file, values, time.monotonic() - started)
        return _read_part(file)[0]

    def train(self, part: Part, *, ignore: Collection[str] = ()) -> dict[str, Any]:
        """Train a part in this process behind a progress bar, or read it from the cache."""

        def compute() -> Values:
            with self.display.bar(part.steps, part.title or part.name, " steps") as tick:
                return part.train(tick)

        return self.cached(part.name, compute, ignore=ignore)

    def train_all(self, parts: Sequence[Part], *, ignore: Collection[str] = ()) -> list[dict[str, Any]]:
        """Train independent parts in order, on the executor if there is one, or read them from the cache."""
        if self.executor is not None:
            self._distribute(self.executor, parts, ignore)
        return [self.train(part, ignore=ignore) for part in parts]

    def train_grid(
        self, names: Iterable[str], seeds: Sequence[int], part: Callable[[str, int], Part], ignore: Collection[str] = ()
    ) -> dict[str, list[dict[str, Any]]]:
        """Train a part for each name and seed; return the values by name, one for each seed."""
        grid = list(product(names, seeds))
        values_by_name: dict[str, list[dict[str, Any]]] = {}
        for (name, _), values in zip(grid, self.train_all([part(*pair) for pair in grid], ignore=ignore), strict=True):
            values_by_name.setdefault(name, []).append(values)
        return values_by_name

    def _distribute(self, executor: Executor, parts: Sequence[Part], ignore: Collection[str]) -> None:
        """Let an executor compute the parts that the cache lacks."""
        missing = [part for part in parts if not self._file(part.name, ignore).exists()]
        if not missing:
            return
        executor.check_nodes(_inspect_node, PARTS_VERSION)
        with self.display.bar(len(missing), "training", " parts") as tick:
            for part, (values, seconds) in executor.run(_compute_part, missing, None):
                _write_part(self._file(part.name, ignore), values, seconds)
                self.display.say(f"{part.title or part.name}: {seconds:.0f} s")
                tick(1)

    def _file(self, name: str, ignore: Collection[str]) -> Path:
        settings = {key: value for key, value in self._settings.items() if key not in ignore}
        key = json.dumps([name, settings, self.data, self._version], default=str)
        digest = blake2b(key.encode(), digest_size=6).hexdigest()
        readable = re.sub(r"[\W_]", "-", name)[:60]
        return self.out / "parts" / f"{readable}-{digest}.npz"


def create_context(
    study: str, settings: Any, out: Path, display: Display, data: str | None = None, executor: Executor | None = None
) -> Context:
    """Create the context of a study; cached parts belong to these settings, this data and ``PARTS_VERSION``."""
    version = f"{study} {PARTS_VERSION} {fingerprint(data or '')}"
    return Context(out, display, data, asdict(settings), version, executor)


def fingerprint(data: str) -> str:
    """Hash paths, sizes and times of the files that ``--data`` names; contents are not read."""
    state = blake2b(digest_size=8)
    for source in re.split(r"[,()]", data):
        names = {source.strip(), source.partition(":")[2].strip()} - {""}
        for name in sorted(names):
            for file in sorted([Path(name), *Path(name).rglob("*")]):
                if file.is_file():
                    stat = file.stat()
                    state.update(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return state.hexdigest()


def _compute_part(part: Part, _: None) -> tuple[dict[str, Any], float]:
    """Compute a part, wherever the executor calls this; also return its seconds."""
    started = time.monotonic()
    values = dict(part.train(lambda _: None))
    return values, time.monotonic() - started


def _inspect_node(_: int) -> dict[str, str]:
    return {"the version of the studies": str(PARTS_VERSION)}


def _write_part(file: Path, values: dict[str, Any], seconds: float) -> None:
    arrays: dict[str, Any] = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
    others = {key: value for key, value in values.items() if key not in arrays}
    arrays |= {OTHER_VALUES: np.array(json.dumps(others)), SECONDS: np.array(seconds)}
    with replacing(file) as unfinished, unfinished.open("wb") as stream:
        np.savez(stream, **arrays)


def _read_part(file: Path) -> tuple[dict[str, Any], float]:
    with np.load(file, allow_pickle=False) as stored:
        values = dict(stored)
    seconds = float(values.pop(SECONDS))
    others = json.loads(str(values.pop(OTHER_VALUES)))
    return {**others, **values}, seconds
