"""Which classes train, which steer the training, and which are tested on: the same for every model of a table."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lookalike.data.pictures import Pictures
from lookalike.data.splits import class_folds
from lookalike.training.split import fingerprint


def with_test_classes(pictures: Pictures) -> Pictures:
    """Pictures with the splits "train" and "test": their own, or the first and the last half of their classes.

    The official validation pictures of a data set belong to training here: a protocol holds out classes of its own. But
    where all test classes are trained on too (other kinds of the same, as in the collage), none can be held out without
    changing what is learnt: then the data's own validation pictures stay what they are, for every fold.
    """
    if pictures.splits is not None:
        for name in ("train", "test"):
            if name not in pictures.splits:
                raise ValueError(
                    f"{pictures.name} has splits but no {name!r}: a table needs pictures to train and test on"
                )
        trained_on = set(pictures.split("train").classes)
        if "validation" in pictures.splits and trained_on.issuperset(pictures.split("test").classes):
            return pictures
        return replace(pictures, splits=_words(np.where(pictures.splits == "test", "test", "train")))
    if len(pictures.classes) < 4:
        raise ValueError(
            f"{pictures.name} has {len(pictures.classes)} classes and no test split: half of at least 4 are tested on"
        )
    is_test = pictures.labels >= len(pictures.classes) // 2
    return replace(pictures, splits=_words(np.where(is_test, "test", "train")))


def with_fold(pictures: Pictures, fold: int, folds: int) -> Pictures:
    """Of pictures with test classes: the ``fold``-th of ``folds`` contiguous ranges of training classes validates."""
    assert pictures.splits is not None
    if "validation" in pictures.splits:
        return pictures  # see with_test_classes
    train = pictures.split("train")
    held_out = set(class_folds(train, folds)[fold][1].names)
    validates = np.fromiter((name in held_out for name in pictures.names), dtype=bool, count=len(pictures))
    validates &= pictures.splits == "train"
    return replace(pictures, splits=_words(np.where(validates, "validation", pictures.splits)))


def steered_by_test(pictures: Pictures) -> Pictures:
    """The test pictures are also what the training is steered by: customary, and nothing to be proud of."""
    assert pictures.splits is not None
    test = np.flatnonzero(pictures.splits == "test")
    both = pictures.take(np.concatenate([np.arange(len(pictures)), test]))
    own = np.where(pictures.splits == "test", "test", "train")
    splits = np.concatenate([own, np.full(len(test), "validation")])
    return replace(both, splits=_words(splits))


def fingerprint_of(pictures: Pictures) -> str:
    """Of all that a model is trained, steered and tested with."""
    present = sorted(set(pictures.splits.tolist())) if pictures.splits is not None else []
    return " ".join(f"{name} {fingerprint(pictures.split(name))}" for name in present)


def _words(splits: NDArray[np.str_]) -> NDArray[np.str_]:
    return splits.astype("<U10")  # room for "validation"
