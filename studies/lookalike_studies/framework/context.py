"""Where a study works: its folder, data and display, and a cache of its slow parts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike._util.files import replacing

if TYPE_CHECKING:
    from lookalike._util.progress import Display
    from lookalike_studies.framework.study import Study

Tick = Callable[[int], Any]  # called with the number of finished steps
PARTS_VERSION = 2  # raise it when the same settings would give other parts
OTHER_VALUES, SECONDS = "json", "seconds of the part"  # entries of a cache file beside the arrays


class Context:
    """Folder, data, display and cache of one run of a study.

    Attributes:
        out: Folder of the study.
        display: Shows progress and stops on request.
        data: Value of ``--data``; None without it.
        earlier_seconds: How long the parts took that came from the cache.
    """

    def __init__(
        self,
        out: Path,
        display: Display,
        data: str | None = None,
        settings: Mapping[str, Any] | None = None,
        version: str = "",
    ) -> None:
        """Create a context.

        Args:
            out: Folder of the study.
            display: Shows progress and stops on request.
            data: Value of ``--data``.
            settings: All settings of the study by name; part of the cache key.
            version: Version of study and data; part of the cache key.
        """
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
        settings = {key: value for key, value in self._settings.items() if key not in ignore}
        key = json.dumps([name, settings, self.data, self._version], default=str)
        digest = blake2b(key.encode(), digest_size=6).hexdigest()
        readable = re.sub(r"[\W_]", "-", name)[:60]
        file = self.out / "parts" / f"{readable}-{digest}.npz"
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


def create_context(study: Study, settings: Any, out: Path, display: Display, data: str | None = None) -> Context:
    """Create the context of a study; cached parts belong to these settings, this data and ``PARTS_VERSION``.

    Args:
        study: The study.
        settings: Its settings.
        out: Its folder.
        display: Shows progress and stops on request.
        data: Value of ``--data``.

    Returns:
        The context.
    """
    return Context(out, display, data, asdict(settings), f"{study.name} {PARTS_VERSION} {fingerprint(data or '')}")


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
