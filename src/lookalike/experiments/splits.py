"""Splits of a protocol: classes for training, validation and test, the same for every model of a table."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lookalike.data.pictures import Pictures
from lookalike.data.splits import class_folds
from lookalike.training.split import fingerprint

SPLIT_TYPE = "<U10"  # room for "validation"


def with_test_classes(pictures: Pictures) -> Pictures:
    """Give pictures the splits "train" and "test": their own, or the first and the last half of their classes.

    A protocol holds out its own classes, so official validation pictures belong to training here. There is one
    exception: if all test classes are also trained on (other kinds of the same, as in the collage), holding classes
    out would change the task. Then the data's own validation pictures are used for every fold.

    Raises:
        ValueError: there are splits but not both of these, or too few classes.
    """
    if pictures.splits is None:
        count = len(pictures.classes)
        if count < 4:
            raise ValueError(f"{pictures.name} has {count} classes and no test split: half of at least 4 are tested on")
        return _with_splits(pictures, np.where(pictures.labels >= count // 2, "test", "train"))
    for name in ("train", "test"):
        if name not in pictures.splits:
            raise ValueError(f"{pictures.name} has splits but no {name!r}: a table needs pictures to train and test on")
    train_classes = set(pictures.split("train").classes)
    if "validation" in pictures.splits and train_classes.issuperset(pictures.split("test").classes):
        return pictures
    return _with_splits(pictures, np.where(pictures.splits == "test", "test", "train"))


def with_fold(pictures: Pictures, fold: int, folds: int) -> Pictures:
    """Use one of several contiguous ranges of training classes for validation.

    Args:
        pictures: with test classes.
        fold: number of the range, from 0.
        folds: number of ranges.
    """
    assert pictures.splits is not None
    if "validation" in pictures.splits:
        return pictures  # see with_test_classes
    _, held_out = class_folds(pictures.split("train"), folds)[fold]
    validates = np.isin(pictures.names, held_out.names) & (pictures.splits == "train")
    return _with_splits(pictures, np.where(validates, "validation", pictures.splits))


def steered_by_test(pictures: Pictures) -> Pictures:
    """Use the test pictures for validation as well, as conventional evaluation does; its results are optimistic."""
    assert pictures.splits is not None
    is_test = pictures.splits == "test"
    test = np.flatnonzero(is_test)
    doubled = pictures.take(np.concatenate([np.arange(len(pictures)), test]))
    splits = np.concatenate([np.where(is_test, "test", "train"), np.full(len(test), "validation")])
    return _with_splits(doubled, splits)


def fingerprint_of(pictures: Pictures) -> str:
    """Identifies the pictures of every split."""
    if pictures.splits is None:
        return ""
    names = sorted(set(pictures.splits.tolist()))
    return " ".join(f"{name} {fingerprint(pictures.split(name))}" for name in names)


def _with_splits(pictures: Pictures, splits: NDArray[np.str_]) -> Pictures:
    return replace(pictures, splits=splits.astype(SPLIT_TYPE))
