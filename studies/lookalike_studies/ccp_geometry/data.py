"""Load the pictures of the study into memory: one set with shared classes, one with unseen classes.

In the first set, such as MNIST, train and test have the same classes. In the second, such as CUB, they have none in
common; its pictures become features of a frozen backbone. Drawn letters replace a set that is not given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike import data
from lookalike.data.glyphs import glyphs
from lookalike.data.pictures import Pictures
from lookalike.data.splits import hold_out_classes
from lookalike.experiments.choices import split_top_level
from lookalike.experiments.splits import with_test_classes
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone, starts_random
from lookalike.training.pretrain import read_pixels
from lookalike_studies.ccp_geometry.race import SPEC, DataSplit, DataSplits
from lookalike_studies.framework.context import Context

HELD_OUT = 1 / 3  # of the training classes, as in the authors' ablations


def sources(option: str | None) -> tuple[Pictures | None, Pictures | None]:
    """Load the sets of ``--data``, separated by commas: pictures with shared classes, and with unseen ones."""
    by_kind: dict[bool, Pictures] = {}
    for source in split_top_level(option or "", ","):
        pictures = data.load(source, check=False)
        is_shared = shares_classes(pictures)
        if is_shared in by_kind:
            raise ValueError(
                "--data takes one set with the same classes in train and test, as mnist:FOLDER, and one with unseen "
                f"classes to test, as cub:FOLDER, separated by a comma; {source} is one too many"
            )
        by_kind[is_shared] = pictures
    return by_kind.get(True), by_kind.get(False)


def shares_classes(pictures: Pictures) -> bool:
    """Return whether train and test have the same classes, not none in common or no test part."""
    if pictures.splits is None:
        return False
    train = set(pictures.split("train").classes)
    test: set[str] = set()
    if "test" in pictures.splits:
        test.update(pictures.split("test").classes)
    if train & test and train != test:
        raise ValueError(
            f"{pictures.name}: {len(train & test)} of {len(train | test)} classes are both in train and in test; the "
            "disc needs all of them in both, unseen classes none"
        )
    return train == test


def with_shared_classes(
    pictures: Pictures | None, classes: int, train: int, validation: int, test: int
) -> tuple[DataSplits, list[str]]:
    """Split pictures into parts with at most so many of each class; return them and the names of the classes.

    Without ``pictures``, letters of so many ``classes`` are drawn.
    """
    if pictures is None:
        pictures = glyphs(cells=1, size=32, train_classes=classes, test_classes=0, per_class=train + validation + test)
        order = _by_class(pictures.labels)
        chosen = [order[:train], order[train : train + validation], order[train + validation :]]
        return _parts(pictures, chosen), list(pictures.classes)
    known = _by_class(np.where(pictures.splits == "train", pictures.labels, -1))
    tested = _by_class(np.where(pictures.splits == "test", pictures.labels, -1))
    counts = (known >= 0).sum(0)
    if counts.min() <= validation:
        fewest = pictures.classes[counts.argmin()]
        raise ValueError(
            f"validation, pictures held out of each class, must be less than the {counts.min()} training pictures that "
            f"{pictures.name} has of {fewest!r}, got {validation}"
        )
    chosen = [known[validation : validation + train], known[:validation], tested[:test]]
    return _parts(pictures, chosen), list(pictures.classes)


def drawn_with_unseen_classes(classes: int, each: int) -> DataSplits:
    """Draw letters: two thirds of ``classes`` for training, one third held out, and a third as many more to test."""
    drawn = glyphs(cells=1, size=32, train_classes=classes, test_classes=max(2, classes // 3), per_class=each)
    train, validation = hold_out_classes(drawn.split("train"), HELD_OUT, order="contiguous")
    return DataSplits(_pixels(train), _pixels(validation), _pixels(drawn.split("test")))


def features_of(pictures: Pictures, backbone: str, size: int, context: Context) -> DataSplits:
    """Compute averaged features (n, 1, C) of a frozen backbone, as a projection behind average pooling gets them.

    The mean over the training pictures is subtracted. With it every pair would count as similar, and proxies would
    move to the other side of the ball.
    """
    if starts_random(backbone):
        raise ValueError(f"{backbone} comes without weights: it cannot be frozen")
    pictures = with_test_classes(pictures)
    train, validation = hold_out_classes(pictures.split("train"), HELD_OUT, order="contiguous")
    tables = [train, validation, pictures.split("test")]

    def compute() -> dict[str, Any]:
        network = create_backbone(backbone)
        embedder = Embedder(network, None, "average", normalise="none", input_spec=network.spec.resized(size))
        model = TrainedModel(embedder)
        features = {}
        for name, table in zip("abc", tables, strict=True):
            with context.display.bar(len(table), "features") as tick:
                features[name] = model.embed_table(table, tick=tick)
        return features

    ignore = ("seeds", "unseen_seeds", "steps", "unseen_steps")
    features = context.cached(f"features {pictures.name}", compute, ignore=ignore)
    mean = features["a"].mean(0)
    parts = []
    for name, table in zip("abc", tables, strict=True):
        parts.append(DataSplit(torch.from_numpy(features[name] - mean).unsqueeze(1), table.labels))
    return DataSplits(*parts)


def _by_class(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions (largest class, classes): a column for each class, in a seeded order, filled up with -1.

    Labels of -1 are left out.
    """
    order = np.random.default_rng(0).permutation(len(labels))
    columns = [order[labels[order] == label] for label in np.unique(labels[labels >= 0])]
    table = np.full((max(map(len, columns)), len(columns)), -1)
    for number, column in enumerate(columns):
        table[: len(column), number] = column
    return table


def _parts(pictures: Pictures, positions: list[NDArray[np.int64]]) -> DataSplits:
    parts = []
    for table in positions:
        parts.append(_pixels(pictures.take(np.sort(table[table >= 0]))))
    return DataSplits(*parts)


def _pixels(pictures: Pictures) -> DataSplit:
    """Read all pixels, as squares of at most 32 px."""
    side = min(SPEC.size, *pictures.image(0).size)
    return DataSplit(torch.from_numpy(read_pixels(pictures, SPEC.resized(side))), pictures.labels)
