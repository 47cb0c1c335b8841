"""Pictures of a few classes: some for training, others of the same classes for measurements."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lookalike import data
from lookalike.data.pictures import Pictures


def class_pictures(
    source: str, *, classes: int, names: Sequence[str] = (), pictures: int, training_pictures: int, fewest: int
) -> tuple[Pictures, Pictures]:
    """Load pictures of some classes: for training and for measurements.

    If the data has the splits train and test, and both have all classes, they are used as they are. Otherwise the first
    pictures of each class are measured and the rest are for training.

    Args:
        source: As ``data.load`` takes it.
        classes: Number of classes: the first ones, unless there are ``names``.
        names: Names of the classes.
        pictures: Measured pictures of each class, at most.
        training_pictures: Training pictures of each class, at most.
        fewest: Training pictures that each class must have.
    """
    if len(set(names)) < len(names):
        raise ValueError(f"names must be of different classes, got {', '.join(names)}")
    everything = data.load(source, check=False)
    has_splits = everything.splits is not None and {"train", "test"} <= set(everything.splits.tolist())
    if not names:
        candidates = everything.split("train") if has_splits else everything
        names = candidates.classes[:classes]
    everything = everything.with_classes(names)
    train, test, first = everything, everything, pictures
    if has_splits:
        splits = everything.split("train"), everything.split("test")
        if len(splits[0].classes) == len(splits[1].classes) == len(names):
            train, test, first = *splits, 0
    training = _of_each_class(train, first, first + training_pictures)
    measured = _of_each_class(test, 0, pictures)
    for name, indices in zip(everything.classes, training, strict=True):
        if len(indices) < fewest:
            raise ValueError(
                f"{everything.name}: the class {name} has {len(indices)} training pictures, needs {fewest}: lower "
                "pictures, or name other classes"
            )
    return train.take(np.concatenate(training)), test.take(np.concatenate(measured))


def _of_each_class(pictures: Pictures, start: int, stop: int) -> list[NDArray[np.int64]]:
    """Indices of the pictures start..stop of each class."""
    return [np.flatnonzero(pictures.labels == label)[start:stop] for label in range(len(pictures.classes))]
