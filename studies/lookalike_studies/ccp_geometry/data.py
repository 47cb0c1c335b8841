"""The pictures of the study, in memory: of classes that train and test share, and of classes that they do not.

The first are MNIST, Fashion-MNIST or whatever has all its classes in both parts, else drawn letters; the second are CUB
or whatever has none in both, as features of a frozen backbone, else drawn letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike import data
from lookalike.data.glyphs import glyphs
from lookalike.data.pictures import Pictures
from lookalike.data.splits import hold_out_classes
from lookalike.experiments.choices import split_top_level
from lookalike.experiments.splits import with_test_classes
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone, starts_random
from lookalike_studies.ccp_geometry.race import Part, Parts

if TYPE_CHECKING:
    from lookalike_studies.framework.context import Context

MOST_PIXELS = 32
HELD_OUT = 1 / 3  # of the training classes, as in the authors' ablations


def sources(said: str | None) -> tuple[Pictures | None, Pictures | None]:
    """What ``--data`` names, separated by commas: pictures with shared classes, and with unseen ones."""
    found: dict[bool, Pictures] = {}
    for source in split_top_level(said or "", ","):
        pictures = data.load(source, check=False)
        is_shared = shares_classes(pictures)
        if is_shared in found:
            raise ValueError(
                "--data takes one set with the same classes in train and test, as mnist:FOLDER, and one with unseen "
                f"classes to test, as cub:FOLDER, separated by a comma; {source} is one too many"
            )
        found[is_shared] = pictures
    return found.get(True), found.get(False)


def shares_classes(pictures: Pictures) -> bool:
    """Whether train and test have the same classes; False: they have none in common, or there is no test part."""
    if pictures.splits is None:
        return False
    train = set(pictures.split("train").classes)
    test = set(pictures.split("test").classes) if "test" in pictures.splits else set[str]()
    if train & test and train != test:
        raise ValueError(
            f"{pictures.name}: {len(train & test)} of {len(train | test)} classes are both in train and in test; the "
            "disc needs all of them in both, unseen classes none"
        )
    return train == test


def with_shared_classes(
    pictures: Pictures | None, classes: int, train: int, validation: int, test: int
) -> tuple[Parts, list[str]]:
    """At most so many pictures of each class, and the classes' names. None: drawn letters, so many classes."""
    if pictures is None:
        pictures = glyphs(cells=1, size=32, train_classes=classes, test_classes=0, per_class=train + validation + test)
        order = _by_class(pictures.labels)
        chosen = [order[:train], order[train : train + validation], order[train + validation :]]
        return _parts(pictures, chosen), list(pictures.classes)
    known, tested = (_by_class(np.where(pictures.splits == split, pictures.labels, -1)) for split in ("train", "test"))
    counts = (known >= 0).sum(0)
    if counts.min() <= validation:
        fewest = pictures.classes[counts.argmin()]
        raise ValueError(
            f"validation, pictures held out of each class, must be less than the {counts.min()} training pictures that "
            f"{pictures.name} has of {fewest!r}, got {validation}"
        )
    chosen = [known[validation : validation + train], known[:validation], tested[:test]]
    return _parts(pictures, chosen), list(pictures.classes)


def drawn_with_unseen_classes(classes: int, each: int) -> Parts:
    """Letters: two thirds of ``classes`` for training, one third held out, and as many others for the test."""
    drawn = glyphs(cells=1, size=32, train_classes=classes, test_classes=max(2, classes // 3), per_class=each)
    train, validation = hold_out_classes(drawn.split("train"), HELD_OUT, order="contiguous")
    return Parts(*(_pixels(part) for part in (train, validation, drawn.split("test"))))


def features_of(pictures: Pictures, backbone: str, size: int, context: Context) -> Parts:
    """Averaged features (n, 1, C) of a frozen backbone: on them the projection is what it is behind average pooling.

    Their mean over the training pictures is taken away: all have it in common, every pair would be taken for similar,
    and proxies would flee from it to the other side of the ball.
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
        found = {}
        for name, table in zip("abc", tables, strict=True):
            with context.display.bar(len(table), "features") as tick:
                found[name] = model.embed_table(table, tick=tick)
        return found

    found = context.cached(
        f"features {pictures.name}", compute, ignore=("seeds", "unseen_seeds", "steps", "unseen_steps")
    )
    middle = found["a"].mean(0)
    vectors = [torch.from_numpy(found[name] - middle).unsqueeze(1) for name in "abc"]
    return Parts(*(Part(each, table.labels) for each, table in zip(vectors, tables, strict=True)))


def _by_class(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places (most of a class, classes), each column those of one class in a seeded order; -1 where there are no more.

    Labels of -1 are left out.
    """
    order = np.random.default_rng(0).permutation(len(labels))
    columns = [order[labels[order] == label] for label in np.unique(labels[labels >= 0])]
    table = np.full((max(map(len, columns)), len(columns)), -1)
    for number, column in enumerate(columns):
        table[: len(column), number] = column
    return table


def _parts(pictures: Pictures, places: list[NDArray[np.int64]]) -> Parts:
    return Parts(*(_pixels(pictures.take(np.sort(chosen[chosen >= 0]))) for chosen in places))


def _pixels(pictures: Pictures) -> Part:
    """As they come, but no larger than 32 px."""
    first = pictures.image(0)
    side = min(MOST_PIXELS, *first.size)
    images = (pictures.image(i) for i in range(len(pictures)))
    arrays = [np.asarray(image if image.size == (side, side) else image.resize((side, side))) for image in images]
    pixels: Tensor = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()
    return Part(pixels, pictures.labels)
