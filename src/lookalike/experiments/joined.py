"""The models of all folds as one: their normalised vectors concatenated, and normalised again.

Four models of 128 numbers make one of 512, measured for every combination of repeats (Musgrave et al., "A Metric
Learning Reality Check", ECCV 2020). Metrics are stored in DIR/joined/ under the keys of the models: a file for each
model of the first fold, with all combinations that it belongs to.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lookalike._util.files import write_text
from lookalike._util.hashing import digest
from lookalike._util.untrusted import LARGEST_LIST, read_json
from lookalike.experiments.cells import test_labels_file
from lookalike.experiments.results import CellResult
from lookalike.experiments.rows import Row, Summary
from lookalike.training.evaluate import measure

MOST = 81  # combinations that are measured: all of 3 repeats in 4 folds
SAVE_EVERY = 10.0  # seconds


class JoinError(ValueError):
    """The models of a row cannot be joined, and why."""


class Labels(NamedTuple):
    """The test pictures, as far as ``measure`` needs them."""

    name: str
    labels: NDArray[Any]
    roles: NDArray[Any] | None


@dataclass(frozen=True)
class Joined:
    """Metrics of the joined models of a row.

    Attributes:
        dim: size of the joined embedding.
        metrics: of each combination that was measured.
        combinations: how many there are, measured or not.
    """

    dim: int
    metrics: tuple[dict[str, float], ...]
    combinations: int

    def summary(self, metric: str) -> Summary:
        """Mean, std and best of a metric over the measured combinations."""
        values = [metrics[metric] for metrics in self.metrics]
        std = stdev(values) if len(values) > 1 else None
        return Summary(mean(values), std, max(values), len(values))


def join_row(row: Row, folder: Path, tick: Callable[[int], None] = lambda _: None, most: int = MOST) -> Joined:
    """Measure the joined models of a row.

    Raises:
        JoinError: the models cannot be joined.
    """
    check_joinable(row)
    combinations = row.combinations(most)
    labels: dict[str, Labels] = {}  # by fingerprint, each read once
    measured = []
    for first_key, group in groupby(combinations, key=lambda models: models[0].key):
        with _MetricsFile(folder / "joined" / f"{digest(first_key)}.json") as file:
            for models in group:
                key = " ".join(model.key for model in models)
                if key not in file.metrics:
                    file.add(key, _measure(models, folder, labels))
                measured.append(file.metrics[key])
                tick(1)
    dim = sum(model.dim for model in combinations[0])
    return Joined(dim, tuple(measured), prod(map(len, row.folds.values())))


def check_joinable(row: Row) -> None:
    """Check that a row has several folds, each with a finished model whose vectors were stored.

    Raises:
        JoinError: it has not.
    """
    if not row.results:
        raise JoinError("no model is done")
    empty_folds = {fold for fold, _ in row.missing} - set(row.folds)
    if empty_folds:
        numbers = ", ".join(str(fold + 1) for fold in sorted(empty_folds))
        raise JoinError(f"no model of fold {numbers} is done")
    if len(row.folds) < 2:
        raise JoinError("there is one fold only")
    for model in row.results:
        if not (model.folder / "vectors.npy").exists():
            raise JoinError(f"the vectors of {model.run_label} were not kept")


def join_vectors(vectors: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """Concatenate vectors (N, D) of several models to (N, sum of D), of length 1; a vector of zeros stays zero."""
    normalised = [_normalise(matrix) for matrix in vectors]
    return _normalise(np.concatenate(normalised, axis=1)).astype(np.float32)


class _MetricsFile:
    """Metrics by the keys of their models, in a JSON file that is saved every ``SAVE_EVERY`` seconds and at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_changed = False
        self.saved = time.monotonic()
        self.metrics: dict[str, dict[str, float]] = {}
        with suppress(OSError, ValueError):  # missing or damaged: measured again
            content = read_json(path, LARGEST_LIST)
            if isinstance(content, dict):
                self.metrics = content

    def add(self, key: str, metrics: dict[str, float]) -> None:
        self.metrics[key] = metrics
        self.is_changed = True
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        with suppress(PermissionError):  # a read-only folder is measured every time
            write_text(self.path, json.dumps(self.metrics) + "\n")
        self.is_changed = False
        self.saved = time.monotonic()

    def __enter__(self) -> "_MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_changed:
            self.save()


def _normalise(vectors: NDArray[Any]) -> NDArray[np.float64]:
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def _measure(models: Sequence[CellResult], folder: Path, labels: dict[str, Labels]) -> dict[str, float]:
    test = _shared_labels(models, folder, labels)
    vectors = []
    for model in models:
        matrix = np.load(model.folder / "vectors.npy", mmap_mode="r")
        if matrix.ndim != 2 or len(matrix) != len(test.labels):
            raise JoinError(
                f"vectors of {model.run_label} are {matrix.shape}, but there are {len(test.labels)} test pictures"
            )
        vectors.append(matrix)
    ks = tuple(int(name[2:]) for name in models[0].test if name.startswith("R@"))
    return measure(join_vectors(vectors), cast(Any, test), distance="cosine", ks=ks or (1,))


def _shared_labels(models: Sequence[CellResult], folder: Path, labels: dict[str, Labels]) -> Labels:
    """The labels of the test pictures, which must be the same for all models."""
    for model in models:
        if model.fingerprint not in labels:
            path = test_labels_file(folder, model.fingerprint)
            if not path.exists():
                raise JoinError(f"the labels of the test pictures are missing: {path.name} in {path.parent}")
            with np.load(path) as content:
                labels[model.fingerprint] = Labels(model.data, content["labels"], content["roles"])
    first = labels[models[0].fingerprint]
    for model in models[1:]:
        other = labels[model.fingerprint]
        for name in ("labels", "roles"):
            if not np.array_equal(getattr(first, name), getattr(other, name)):
                raise JoinError(f"the folds were tested on different pictures: their {name} differ")
    return first
