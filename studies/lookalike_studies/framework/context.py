"""Where a study works: its folder, data and display, and a cache of its slow parts.

Parts that do not depend on each other go to ``Context.train_all``, which lets an executor compute them in other
processes or on other machines. This process alone writes the cache, and it remembers what is done.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lookalike._util.files import replacing

if TYPE_CHECKING:
    from lookalike._util.progress import Display
    from lookalike.executors import Executor
    from lookalike_studies.framework.study import Study

Tick = Callable[[int], Any]  # called with the number of finished steps
PARTS_VERSION = 3  # raise it when the same settings would give other parts
OTHER_VALUES, SECONDS = "json", "seconds of the part"  # entries of a cache file beside the arrays


class Part(NamedTuple):
    """A part that does not depend on others.

    Attributes:
        name: As for ``Context.cached``.
        steps: Length of its progress bar.
        train: Trains and measures; calls its argument with the number of finished steps. A module's function or a
            ``functools.partial`` of one: it may run in another process.
        title: Title of the bar; "": the name.
    """

    name: str
    steps: int
    train: Callable[[Tick], Mapping[str, Any]]
    title: str = ""


class Context:
    """Folder, data, display and cache of one run of a study.

    Attributes:
        out: Folder of the study.
        display: Shows progress and stops on request.
        data: Value of ``--data``; None without it.
        executor: Where independent parts run; None: in this process.
        earlier_seconds: How long the parts took that came from the cache.
    """

    def __init__(
        self,
        out: Path,
        display: Display,
        data: str | None = None,
        settings: Mapping[str, Any] | None = None,
        version: str = "",
        executor: Executor | None = None,
    ) -> None:
        """Create a context.

        Args:
            out: Folder of the study.
            display: Shows progress and stops on request.
            data: Value of ``--data``.
            settings: All settings of the study by name; part of the cache key.
            version: Version of study and data; part of the cache key.
            executor: Where independent parts run; None: in this process.
        """
        self.executor = executor
        self.out, self.display, self.data = out, display, data
        self.earlier_seconds = 0.0
        self._settings, self._version = dict(settings or {}), version

    def cached(
        self, name: str, compute: Callable[[], Mapping[str, Any]], *, ignore: Collection[str] = ()
    ) -> dict[str, Any]:
        """Compute a part of the study, or read it from ``parts/`` if an earlier run has computed it.

        Args:
            name: Name of the part.
            compute: Returns arrays and values that JSON can hold, by name.
            ignore: Settings that the part does not depend on; they are excluded from the cache key.

        Returns:
            What ``compute`` returns, as read from the cache: tuples have become lists.
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

    def train(
        self,
        name: str,
        steps: int,
        train: Callable[[Tick], Mapping[str, Any]],
        *,
        title: str = "",
        ignore: Collection[str] = (),
    ) -> dict[str, Any]:
        """Train a part of the study behind a progress bar, or read it from the cache.

        Args:
            name: Name of the part, as in ``cached``.
            steps: Length of the bar.
            train: Trains and measures; calls its argument with the number of finished steps.
            title: Title of the bar; "": the name.
            ignore: As in ``cached``.

        Returns:
            What ``train`` returns, as read from the cache.
        """

        def compute() -> Mapping[str, Any]:
            with self.display.bar(steps, title or name, " steps") as tick:
                return train(tick)

        return self.cached(name, compute, ignore=ignore)

    def train_all(self, parts: Sequence[Part], *, ignore: Collection[str] = ()) -> list[dict[str, Any]]:
        """Train independent parts, on the executor if there is one, or read them from the cache.

        Args:
            parts: The parts.
            ignore: As in ``cached``.

        Returns:
            What each part returns, in the order of ``parts``.
        """
        if self.executor is not None:
            self._distribute(self.executor, parts, ignore)
        results = []
        for part in parts:
            results.append(self.train(part.name, part.steps, part.train, title=part.title, ignore=ignore))
        return results

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
    study: Study,
    settings: Any,
    out: Path,
    display: Display,
    data: str | None = None,
    executor: Executor | None = None,
) -> Context:
    """Create the context of a study; cached parts belong to these settings, this data and ``PARTS_VERSION``.

    Args:
        study: The study.
        settings: Its settings.
        out: Its folder.
        display: Shows progress and stops on request.
        data: Value of ``--data``.
        executor: Where independent parts run; None: in this process.

    Returns:
        The context.
    """
    version = f"{study.name} {PARTS_VERSION} {fingerprint(data or '')}"
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
    arrays: dict[str, Any] = {}
    others = {}
    for key, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[key] = value
        else:
            others[key] = value
    arrays[OTHER_VALUES] = np.array(json.dumps(others))
    arrays[SECONDS] = np.array(seconds)
    with replacing(file) as unfinished, unfinished.open("wb") as stream:
        np.savez(stream, **arrays)


def _read_part(file: Path) -> tuple[dict[str, Any], float]:
    with np.load(file, allow_pickle=False) as stored:
        values = dict(stored)
    seconds = float(values.pop(SECONDS))
    others = json.loads(str(values.pop(OTHER_VALUES)))
    return {**others, **values}, seconds
