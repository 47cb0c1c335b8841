"""Parts of a table to hold out: by class, for classes nobody has seen, or by picture.

Everything is a pure function of the names and the seed: the seeded choices rank names by a hash of (seed, name), so
that they do not depend on the order of the files, the machine or the version of a random generator.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checks import check_count
from lookalike.data.pictures import Pictures

QUERY, GALLERY = ("query", "both"), ("gallery", "both")  # the roles on each side of a search


def hold_out_classes(
    pictures: Pictures, share: float, *, order: Literal["contiguous", "seeded"] = "seeded", seed: int = 0
) -> tuple[Pictures, Pictures]:
    """(for training, held out), with no class in both.

    ``share`` of the classes, rounded, and at least one on each side, is held out: the last ones in their order
    ("contiguous", as the benchmarks do) or some chosen by ``seed``.
    """
    _check_share(share)
    if order not in ("contiguous", "seeded"):
        raise ValueError(f"order must be 'contiguous' or 'seeded', got {order!r}")
    count = len(pictures.classes)
    if count < 2:
        raise ValueError(f"to hold out classes there must be at least two, got {count} in {pictures.name}")
    held = min(max(round(share * count), 1), count - 1)
    ranked = np.arange(count) if order == "contiguous" else _shuffled(pictures.classes, seed)
    out = np.zeros(count, dtype=bool)
    out[ranked[count - held :]] = True
    return pictures.take(~out[pictures.labels]), pictures.take(out[pictures.labels])


def class_folds(pictures: Pictures, folds: int) -> list[tuple[Pictures, Pictures]]:
    """``folds`` pairs (for training, held out): fold i holds out the i-th contiguous range of the classes.

    The ranges differ by at most one class. With 4 folds this is the fair protocol of Musgrave, Belongie and Lim
    ("A Metric Learning Reality Check", ECCV 2020).
    """
    check_count("folds", folds, least=2)
    count = len(pictures.classes)
    if folds > count:
        raise ValueError(f"folds must be at most the number of classes, {count} in {pictures.name}, got {folds}")
    edges = [count * i // folds for i in range(folds + 1)]
    ranges = [(low <= pictures.labels) & (pictures.labels < high) for low, high in pairwise(edges)]
    return [(pictures.take(~out), pictures.take(out)) for out in ranges]


def hold_out_pictures(pictures: Pictures, share: float, seed: int = 0) -> tuple[Pictures, Pictures]:
    """(for training, held out), with pictures of every class in both: for sets with too few classes to split by class.

    Of each class ``share`` of its pictures, rounded, is held out, and at least one is on each side; a class's only
    picture stays with the training.
    """
    _check_share(share)
    counts = pictures.counts()
    held = np.clip(np.rint(share * counts), 1, counts - 1)
    ranked = _shuffled(pictures.names, seed)
    by_class = ranked[np.argsort(pictures.labels[ranked], kind="stable")]
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = np.arange(len(pictures)) - np.repeat(first, counts)  # of each picture within its class
    out = np.zeros(len(pictures), dtype=bool)
    out[by_class] = place < np.repeat(held, counts)
    if not out.any():
        raise ValueError(f"every class of {pictures.name} has a single picture: there is none to hold out")
    return pictures.take(~out), pictures.take(out)


def singletons(pictures: Pictures) -> list[str]:
    """The classes with a single picture: it has no other to be found by, so it cannot be a query."""
    return [pictures.classes[i] for i in np.flatnonzero(pictures.counts() == 1)]


def measurable_classes(pictures: Pictures) -> int:
    """How many classes a search can be measured on: those with a query and another picture to be found by it.

    Queries and gallery are as the roles say; without roles every picture is in both.
    """
    counts = pictures.counts()
    if not pictures.has_roles:
        return int((counts > 1).sum())
    queries, gallery, both = (_counts_with(pictures, *roles) for roles in (QUERY, GALLERY, ("both",)))
    return int((queries * gallery > both).sum())  # who is both does not find itself


def lacking_role(pictures: Pictures) -> str | None:
    """What is wrong if there are roles, but only one side of a search; None if nothing is."""
    for there, missing, roles in (("gallery", "query", QUERY), ("query", "gallery", GALLERY)):
        if pictures.has_roles and not _counts_with(pictures, *roles).any():
            return f"pictures have the role {there}, but none has {missing} or both, so nothing can be measured"
    return None


def _counts_with(pictures: Pictures, *roles: str) -> NDArray[np.int64]:
    """How many pictures of each class have one of the roles, (classes,)."""
    labels = pictures.labels[np.isin(pictures.roles if pictures.roles is not None else [], roles)]
    return np.bincount(labels, minlength=len(pictures.classes)).astype(np.int64)


def _check_share(share: float) -> None:
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        raise TypeError(f"share must be a number, got {share!r}")
    if not 0 < share < 1:
        raise ValueError(f"share must lie in (0, 1), got {share}")


def _shuffled(names: tuple[str, ...], seed: int) -> NDArray[np.int64]:
    """The indices of ``names`` in an order that only the seed and the names decide."""
    check_count("seed", seed, least=0)
    hashes = [blake2b(f"{seed}\0{name}".encode(errors="surrogateescape"), digest_size=8).digest() for name in names]
    return np.array(sorted(range(len(names)), key=lambda i: (hashes[i], names[i], i)), dtype=np.int64)
