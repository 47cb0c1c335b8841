"""Duplicates: files with the same content, and pictures that show the same photograph.

Near duplicates are pictures whose thumbnails agree, also mirrored, in brightness and in colour. Vectors are only a
guard: alone they would also pair two birds of a species on the same kind of branch, and they miss small or poor copies.
The limits were chosen on 100 pictures of each class of CIFAR-100; docs/how-to/doctor.md has figures of other pictures.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lookalike.data.files import reading_at_least
from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.retrieval import neighbours

CANDIDATES = 3  # nearest thumbnails
LEAST_COSINE = 0.5  # of two vectors
LEAST_CORRELATION = 0.97  # of two thumbnails in colour
LEAST_GREY = 0.95  # of two thumbnails in grey
THUMBNAIL = 12  # pixels
LEAST_CONTRAST = 5.0  # norm of a thumbnail in grey levels; below, it has one colour
DECODED_SIDE = 96  # pixels of the shorter side from which JPEG files are decoded, which is faster


class Duplicate(NamedTuple):
    """Two pictures that are the same, and how similar they are (1: the same content)."""

    first: int
    second: int
    similarity: float


def exact_duplicates(pictures: Pictures, tick: Callable[[int], None]) -> list[Duplicate]:
    """Pair each picture with the first one of the same content."""
    first_with: dict[str, int] = {}
    duplicates = []
    for i in range(len(pictures)):
        key = pictures.key(i)
        if key in first_with:
            duplicates.append(Duplicate(first_with[key], i, 1.0))
        else:
            first_with[key] = i
        tick(1)
    return duplicates


def near_duplicates(
    thumbnails: NDArray[np.float32], vectors: NDArray[np.floating], known: list[Duplicate]
) -> list[Duplicate]:
    """Pair pictures that show the same photograph in another size, quality or mirrored.

    Args:
        thumbnails: Of all pictures, from ``make_thumbnails``.
        vectors: Theirs, (n, D).
        known: Exact duplicates; later copies are not compared again.

    Returns:
        Pairs, each later picture with one earlier picture.
    """
    copies = {duplicate.second for duplicate in known}
    is_usable = (thumbnails != 0).any(axis=(1, 2, 3))
    originals = np.array([i for i in np.flatnonzero(is_usable).tolist() if i not in copies], np.int64)
    if len(originals) < 2:
        return []
    colour = thumbnails[originals]
    best: dict[int, Duplicate] = {}
    for queries in (colour, colour[:, :, ::-1]):
        grey, grey_queries = _normalised(colour.mean(axis=3), 1e-3), _normalised(queries.mean(axis=3), 1e-3)
        flat, flat_queries = (values.reshape(len(originals), -1) for values in (colour, queries))
        ranked = neighbours(flat_queries, flat, k=min(CANDIDATES + 1, len(originals)))
        scores, indices = np.asarray(ranked.scores), np.asarray(ranked.indices)
        for row, column in np.argwhere(scores >= LEAST_CORRELATION).tolist():
            other = int(indices[row, column])
            if other == row or float((grey_queries[row] * grey[other]).sum()) < LEAST_GREY:
                continue
            first, second = sorted((int(originals[row]), int(originals[other])))
            correlation = float(min(scores[row, column], 1.0))
            is_better = second not in best or correlation > best[second].similarity
            if is_better and _cosine(vectors[first], vectors[second]) >= LEAST_COSINE:
                best[second] = Duplicate(first, second, correlation)
    return [best[second] for second in sorted(best)]


def make_thumbnails(
    pictures: Pictures, tick: Callable[[int], None]
) -> tuple[NDArray[np.float32], list[tuple[int, str]]]:
    """Read all pictures at a small size.

    Returns:
        Colours (n, side, side, 3) of mean 0 and norm 1; zeros for a picture of one colour or one that is unreadable.
        And the positions of the unreadable ones, with the reasons.
    """
    smaller = reading_at_least(pictures, DECODED_SIDE)
    thumbnails = np.zeros((len(pictures), THUMBNAIL, THUMBNAIL, 3), np.float32)
    unreadable = []
    for i in range(len(pictures)):
        try:
            image = smaller.image(i).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
            thumbnails[i] = np.asarray(image, np.float32)
        except UnreadablePicture as error:
            unreadable.append((i, error.reason))
        tick(1)
    return _normalised(thumbnails, LEAST_CONTRAST), unreadable


def group(duplicates: list[Duplicate]) -> dict[int, int]:
    """Map every picture that has duplicates to the first picture of its group."""
    linked: dict[int, list[int]] = defaultdict(list)
    for duplicate in duplicates:
        linked[duplicate.first].append(duplicate.second)
        linked[duplicate.second].append(duplicate.first)
    root_of: dict[int, int] = {}
    for start in sorted(linked):
        if start in root_of:
            continue
        reached = [start]
        while reached:
            i = reached.pop()
            if i not in root_of:
                root_of[i] = start
                reached += linked[i]
    return root_of


def _normalised(pictures: NDArray[np.float32], least: float) -> NDArray[np.float32]:
    """Pictures of mean 0 and norm 1; zeros for those whose norm is less than ``least``: they have one colour."""
    axes = tuple(range(1, pictures.ndim))
    centred = pictures - pictures.mean(axis=axes, keepdims=True)
    norms = np.sqrt((centred * centred).sum(axis=axes, keepdims=True))
    result: NDArray[np.float32] = np.where(norms < least, 0, centred / np.maximum(norms, 1e-12)).astype(np.float32)
    return result


def _cosine(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms > 0 else 0.0
