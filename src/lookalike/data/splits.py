"""Splits of a table into training and held-out pictures, by class or by picture.

A split depends only on the names and the seed: names are ranked by a hash of (seed, name), so the order of the files,
the machine and the version of a random generator do not matter.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checks import check_count
from lookalike.data.pictures import Pictures

QUERY, GALLERY = ("query", "both"), ("gallery", "both")  # the roles on each side of a search


def hold_out_classes(
    pictures: Pictures, share: float, *, order: Literal["contiguous", "seeded"] = "seeded", seed: int = 0
) -> tuple[Pictures, Pictures]:
    """Hold out classes.

    Args:
        pictures: The table.
        share: Share of the classes to hold out, in (0, 1); rounded, with at least one class on each side.
        order: "contiguous" holds out the last classes, as the public data sets do; "seeded" chooses them by ``seed``.
        seed: Seed of the choice.

    Returns:
        (training, held out), with no class in both.
    """
    _check_share(share)
    if order not in ("contiguous", "seeded"):
        raise ValueError(f"order must be 'contiguous' or 'seeded', got {order!r}")
    count = len(pictures.classes)
    if count < 2:
        raise ValueError(f"to hold out classes there must be at least two, got {count} in {pictures.name}")
    held_out_count = min(max(round(share * count), 1), count - 1)
    ranked = np.arange(count)
    if order == "seeded":
        ranked = _shuffled(pictures.classes, seed)
    return _split(pictures, np.isin(pictures.labels, ranked[count - held_out_count :]))


def class_folds(pictures: Pictures, folds: int) -> list[tuple[Pictures, Pictures]]:
    """Make folds for cross-validation: fold i holds out the i-th contiguous range of the classes.

    With 4 folds this is the fair protocol of Musgrave, Belongie and Lim ("A Metric Learning Reality Check", ECCV 2020).

    Args:
        pictures: The table.
        folds: Number of folds, at least 2; their sizes differ by at most one class.

    Returns:
        (training, held out) of each fold.
    """
    check_count("folds", folds, least=2)
    count = len(pictures.classes)
    if folds > count:
        raise ValueError(f"folds must be at most the number of classes, {count} in {pictures.name}, got {folds}")
    pairs = []
    for fold in range(folds):
        first, end = count * fold // folds, count * (fold + 1) // folds
        pairs.append(_split(pictures, (first <= pictures.labels) & (pictures.labels < end)))
    return pairs


def hold_out_pictures(pictures: Pictures, share: float, seed: int = 0) -> tuple[Pictures, Pictures]:
    """Hold out pictures of every class: for data with too few classes to split by class.

    Args:
        pictures: The table.
        share: Share of each class to hold out, in (0, 1); rounded, with at least one picture on each side. The only
            picture of a class is for training.
        seed: Seed of the choice.

    Returns:
        (training, held out).
    """
    _check_share(share)
    counts = pictures.counts()
    held_out_counts = np.clip(np.rint(share * counts), 1, counts - 1)
    ranked = _shuffled(pictures.names, seed)
    by_class = ranked[np.argsort(pictures.labels[ranked], kind="stable")]
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank_in_class = np.arange(len(pictures)) - np.repeat(first, counts)
    held_out = np.zeros(len(pictures), dtype=bool)
    held_out[by_class] = rank_in_class < np.repeat(held_out_counts, counts)
    if not held_out.any():
        raise ValueError(f"every class of {pictures.name} has a single picture: there is none to hold out")
    return _split(pictures, held_out)


def singletons(pictures: Pictures) -> list[str]:
    """Return the classes with a single picture, which cannot be a query."""
    return [pictures.classes[i] for i in np.flatnonzero(pictures.counts() == 1)]


def measurable_classes(pictures: Pictures) -> int:
    """Count the classes on which a search can be measured: those with a query and another picture in the gallery.

    Without roles every picture is in both.
    """
    counts = pictures.counts()
    if not pictures.has_roles:
        return int((counts > 1).sum())
    queries, gallery = _counts_with(pictures, *QUERY), _counts_with(pictures, *GALLERY)
    both = _counts_with(pictures, "both")
    return int((queries * gallery > both).sum())  # a picture in both does not find itself


def lacking_role(pictures: Pictures) -> str | None:
    """Return a message if the roles lack queries or a gallery; None if they do not, or there are no roles."""
    if not pictures.has_roles:
        return None
    for present, missing, roles in (("gallery", "query", QUERY), ("query", "gallery", GALLERY)):
        if not _counts_with(pictures, *roles).any():
            return f"pictures have the role {present}, but none has {missing} or both, so nothing can be measured"
    return None


def _split(pictures: Pictures, held_out: NDArray[np.bool_]) -> tuple[Pictures, Pictures]:
    return pictures.take(~held_out), pictures.take(held_out)


def _counts_with(pictures: Pictures, *roles: str) -> NDArray[np.int64]:
    """Pictures of each class with one of the roles, (classes,)."""
    assert pictures.roles is not None  # callers check has_roles
    labels = pictures.labels[np.isin(pictures.roles, roles)]
    return np.bincount(labels, minlength=len(pictures.classes)).astype(np.int64)


def _check_share(share: float) -> None:
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        raise TypeError(f"share must be a number, got {share!r}")
    if not 0 < share < 1:
        raise ValueError(f"share must lie in (0, 1), got {share}")


def _shuffled(names: tuple[str, ...], seed: int) -> NDArray[np.int64]:
    """Indices of ``names`` in an order that depends only on the seed and the names."""
    check_count("seed", seed, least=0)
    keys = []
    for index, name in enumerate(names):
        content = f"{seed}\0{name}".encode(errors="surrogateescape")
        keys.append((blake2b(content, digest_size=8).digest(), name, index))
    return np.array([index for _hash, _name, index in sorted(keys)], dtype=np.int64)
