"""The models of the folds as one: their normalised vectors side by side, normalised again.

Four models of 128 numbers make one of 512, measured anew for every combination of repeats (Musgrave et al., "A Metric
Learning Reality Check", ECCV 2020). What was measured is kept in DIR/joined/, under the keys of its models: a file for
each model of the first fold, with all combinations that it is in.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lookalike._util.files import write_text
from lookalike._util.hashing import digest
from lookalike.experiments.results import Result
from lookalike.experiments.rows import Row, Summary

MOST = 81  # combinations that are measured: all of 3 repeats in 4 folds
SAVE_EVERY = 10.0  # seconds


class JoinError(ValueError):
    """The models of a row cannot be joined; says why."""


class Tested(NamedTuple):
    """Of the test pictures, as much as measuring needs."""

    name: str
    labels: NDArray[Any]
    roles: NDArray[Any] | None


@dataclass(frozen=True)
class Joined:
    dim: int
    figures: tuple[dict[str, float], ...]  # of each combination that was measured
    combinations: int  # that there are

    def summary(self, metric: str) -> Summary:
        values = [each[metric] for each in self.figures]
        return Summary(mean(values), stdev(values) if len(values) > 1 else None, max(values), len(values))


def joined(row: Row, folder: Path, tick: Callable[[int], None] = lambda _: None, most: int = MOST) -> Joined:
    """Measure the joined models of a row in the benchmark ``folder``. ``tick`` is called after each combination."""
    check_joinable(row)
    combinations = row.combinations(most)
    tested: dict[str, Tested] = {}  # files are read once
    figures = []
    for first, several in groupby(combinations, key=lambda models: models[0].key):
        with _Kept(folder / "joined" / f"{digest(first)}.json") as kept:
            for models in several:
                key = " ".join(model.key for model in models)
                if key not in kept.figures:
                    kept.add(key, _measured(models, folder, tested))
                figures.append(kept.figures[key])
                tick(1)
    dim = sum(model.dim for model in combinations[0])
    return Joined(dim, tuple(figures), int(np.prod([len(repeats) for repeats in row.folds.values()])))


class _Kept:
    """Figures by the keys of their models, in a file; written now and then, and at the end, whatever happened."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_new, self.saved = path, False, time.monotonic()
        self.figures: dict[str, dict[str, float]] = {}
        with suppress(OSError, ValueError):  # not there, or damaged: measured anew
            content = json.loads(path.read_text(encoding="utf-8"))
            self.figures = content if isinstance(content, dict) else {}

    def add(self, key: str, figures: dict[str, float]) -> None:
        self.figures[key], self.is_new = figures, True
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        with suppress(PermissionError):  # a folder that may only be read is measured every time
            write_text(self.path, json.dumps(self.figures) + "\n")
        self.is_new, self.saved = False, time.monotonic()

    def __enter__(self) -> "_Kept":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_new:
            self.save()


def check_joinable(row: Row) -> None:
    """Raises ``JoinError`` if there is no sense in it, or no vectors."""
    if not row.results:
        raise JoinError("no model is done")
    absent = {fold for fold, _ in row.missing} - set(row.folds)
    if absent:
        raise JoinError(f"no model of fold {', '.join(str(fold + 1) for fold in sorted(absent))} is done")
    if len(row.folds) < 2:
        raise JoinError("there is one fold only")
    for model in row.results:
        if not (model.folder / "vectors.npy").exists():
            raise JoinError(f"the vectors of fold {model.fold + 1}, repeat {model.repeat + 1} were not kept")


def join(vectors: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """(n, D) of each model -> (n, sum of D), of length 1."""
    side_by_side = np.concatenate([_normalised(each) for each in vectors], axis=1)
    return _normalised(side_by_side).astype(np.float32)


def _normalised(vectors: NDArray[Any]) -> NDArray[np.float64]:
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)  # a vector of zeros stays one


def _measured(models: Sequence[Result], folder: Path, tested: dict[str, Tested]) -> dict[str, float]:
    from lookalike.training.evaluation import measure

    pictures = _tested(models, folder, tested)
    vectors = [np.load(model.folder / "vectors.npy", mmap_mode="r") for model in models]
    for model, each in zip(models, vectors, strict=True):
        if each.ndim != 2 or len(each) != len(pictures.labels):
            place = f"fold {model.fold + 1}, repeat {model.repeat + 1}"
            raise JoinError(f"vectors of {place} are {each.shape}, but there are {len(pictures.labels)} test pictures")
    ks = tuple(int(name[2:]) for name in models[0].test if name.startswith("R@"))
    return measure(join(vectors), cast(Any, pictures), distance="cosine", ks=ks or (1,))


def _tested(models: Sequence[Result], folder: Path, known: dict[str, Tested]) -> Tested:
    """The test pictures, which must be the same for all of the models."""
    from lookalike.experiments.cells import test_labels_file

    for model in models:
        if model.fingerprint not in known:
            path = test_labels_file(folder, model.fingerprint)
            if not path.exists():
                raise JoinError(f"the labels of the test pictures are gone: {path.name} in {path.parent}")
            with np.load(path) as content:
                known[model.fingerprint] = Tested(model.data, content["labels"], content["roles"])
    first, *others = (known[model.fingerprint] for model in models)
    for other in others:
        for name in ("labels", "roles"):
            if not np.array_equal(getattr(first, name), getattr(other, name)):
                raise JoinError(f"the folds were tested on different pictures: their {name} differ")
    return first
