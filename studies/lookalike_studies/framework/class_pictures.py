"""Pictures of a few classes: some to learn from, and others of the same classes to look at.

Data that come in two parts, train and test, are used as they are where both have the classes; of other data the first
pictures of each class are looked at, and the rest is learnt from.
"""

from collections.abc import Sequence

import numpy as np

from lookalike import data
from lookalike.data.pictures import Pictures


def class_pictures(
    source: str, *, classes: int, names: Sequence[str] = (), pictures: int, training_pictures: int, fewest: int
) -> tuple[Pictures, Pictures]:
    """To learn from, and to look at.

    source: as ``data.load`` takes it.  classes: how many, the first ones, unless there are ``names``.  pictures: of
    each class to look at, at most.  training_pictures: of each class to learn from, at most.  fewest: of these; fewer
    are an error.
    """
    if len(set(names)) < len(names):
        raise ValueError(f"names must be of different classes, got {', '.join(names)}")
    every = data.load(source, check=False)
    split = every.splits is not None and {"train", "test"} <= set(every.splits.tolist())
    chosen = names or (every.split("train") if split else every).classes[:classes]
    every = every.with_classes(chosen)
    split = split and all(len(every.split(part).classes) == len(chosen) for part in ("train", "test"))
    apart = [every.split("train"), every.split("test")] if split else [every, every]
    known, shown = ([np.flatnonzero(each.labels == label) for label in range(len(chosen))] for each in apart)
    if not split:
        known = [of[pictures:] for of in known]
    known = [of[:training_pictures] for of in known]
    shown = [of[:pictures] for of in shown]
    for name, few in zip(every.classes, known, strict=True):
        if len(few) < fewest:
            raise ValueError(
                f"{every.name}: the class {name} has {len(few)} pictures beside those to be looked at, "
                f"{fewest} are needed; lower pictures, or name other classes"
            )
    return apart[0].take(np.concatenate(known)), apart[1].take(np.concatenate(shown))
