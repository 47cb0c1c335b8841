"""The CIFAR-100 collage: one picture that is to be recognised among pictures of what every class shares.

A collage is a grid of cells of 32 px, 2 x 2 unless told otherwise. One cell, at random, shows a picture of one of 16
super-classes of CIFAR-100, which is the label; the others show pictures of the 4 super-classes in BACKGROUND. Every
super-class has 5 sub-classes; they are divided between training, validation and test (2/1/2), those of the background
too: the labels are the same everywhere, but what is tested was seen by nobody.

Which pictures: CIFAR-100's own division into 500 and 100 of a class is ignored, all 600 are one pool; with ``apart``
the 500 train and the 100 validate and test, for networks that have classified the 500 before. Each sub-class of a
super-class has its turn in the true cell, with its pictures in an order that the seed decides, so that none comes
twice before all have come once. The background is drawn at random, again and again.

Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023. It does not say which
sub-classes are in which part: here the seed decides. Its code has 3/2 sub-classes and none for validation: with "3/2" a
tenth of the pictures of the training sub-classes validates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lookalike._util.checks import check_count
from lookalike.data.datasets import read_dataset
from lookalike.data.files import raise_problems
from lookalike.data.pictures import SPLITS, BrokenData, Pictures, Problem, UnreadablePicture

SUPER_CLASSES: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
BACKGROUND = ("large_man-made_outdoor_things", "large_natural_outdoor_scenes", "trees", "flowers")
FOREGROUND = tuple(name for name in SUPER_CLASSES if name not in BACKGROUND)

SIDE = 32  # pixels of a cell
BLANK = (129, 124, 112)  # CIFAR-100's mean colour, which the network that is usual for it takes for zero
HELD_OUT = 10  # one of so many pictures of a training sub-class validates where no sub-class does
SPLIT = "2/1/2"
PICTURES = "600/150/300"
FORM = "collage(FOLDER, split=2/1/2, seed=0, pictures=600/150/300, cells=2, distilled=false, apart=false)"
Division = dict[str, dict[str, tuple[str, ...]]]


def collage(
    folder: str | Path,
    *,
    split: str = SPLIT,
    seed: int = 0,
    pictures: str = PICTURES,
    cells: int = 2,
    distilled: bool = False,
    apart: bool = False,
    strict: bool = False,
    progress: bool = False,
) -> Pictures:
    """Collages of 16 classes with the splits "train", "validation" and "test"; all classes are in each of them.

    folder: CIFAR-100 in any layout that ``lookalike.data.datasets`` reads.
    split: how many of the 5 sub-classes train, validate and test; of two numbers, how many train and test.
    pictures: collages of each class in the three splits. More of them leave the old ones as they were.
    cells: a collage has cells x cells of them; 1 leaves the picture alone, 32 px wide.
    distilled: the same collages with nothing in the cells of the background.
    apart: only pictures that CIFAR-100 has for its test validate and test, and only others train.
    strict: raise if a picture cannot be read; else the collages it belongs to are left out.
    progress: show a progress bar while reading.
    The pictures that are needed are read at once and kept in memory, 3 kB each.
    """
    parts = sub_classes(split, seed)
    counts = dict(zip(SPLITS, _numbers("pictures", pictures, (3,), least=1), strict=True))
    check_count("cells", cells)
    for name, given in (("distilled", distilled), ("apart", apart)):
        if not isinstance(given, bool):
            raise TypeError(f"{name} must be true or false, got {given!r}")
    source = _cifar(Path(folder).expanduser())
    places, true_cells = _draw(_pools(source, parts, seed, apart), parts, counts, cells, seed)
    if distilled:
        places[np.arange(cells**2) != true_cells[:, None]] = -1
    reader, problems, good = _read(source, places, true_cells, progress)
    if strict:
        raise_problems("collage", problems)
    default = (split, seed, cells) == (SPLIT, 0, 2)
    drawn = "collage" if default else f"collage-{split.replace('/', '')}-{seed}-{cells}"
    drawn += ("-distilled" if distilled else "") + ("-apart" if apart else "")
    order = [(part, name) for part in SPLITS for name in FOREGROUND]
    each = [counts[part] for part, _ in order]
    table = Pictures(
        name="collage",
        names=tuple(f"{drawn}/{part}/{name}/{number:04d}" for part, name in order for number in range(counts[part])),
        labels=np.repeat(np.tile(np.arange(len(FOREGROUND)), len(SPLITS)), each).astype(np.int64),
        classes=FOREGROUND,
        reader=reader,
        origins=np.arange(len(places), dtype=np.int64),
        splits=np.repeat(np.array([part for part, _ in order]), each),
    )
    if not good.all():
        table = table.take(good)
    return replace(table, problems=problems, notes=source.notes)


def parse_collage(text: str, *, strict: bool = False, progress: bool = False) -> Pictures:
    """``collage:FOLDER``, or ``collage(FOLDER, split=3/2, distilled=true)`` with any settings of ``collage``."""
    if text.startswith("collage:"):
        return collage(text.removeprefix("collage:").strip(), strict=strict, progress=progress)
    folder, *pieces = (piece.strip() for piece in text.removeprefix("collage(").removesuffix(")").split(","))
    if not text.startswith("collage(") or not text.endswith(")") or not folder:
        raise ValueError(f"the collage needs the folder of CIFAR-100: write collage:FOLDER or {FORM}, got {text!r}")
    settings: dict[str, Any] = {}
    for piece in filter(None, pieces):
        name, _, value = (part.strip() for part in piece.partition("="))
        if name in ("split", "pictures"):
            settings[name] = value
        elif name in ("seed", "cells") and value.isdecimal():
            settings[name] = int(value)
        elif name in ("distilled", "apart") and value.lower() in ("true", "false"):
            settings[name] = value.lower() == "true"
        else:
            raise ValueError(f"the collage is written {FORM}, got {piece!r}")
    return collage(folder, strict=strict, progress=progress, **settings)


def sub_classes(split: str = SPLIT, seed: int = 0) -> Division:
    """Which sub-classes are in which part: split -> super-class -> sub-classes.

    Where none are for validation, those of the training stand there: then other pictures of them validate.

    >>> sub_classes("2/1/2")["train"]["fish"], sub_classes("2/1/2")["test"]["fish"]
    (('ray', 'trout'), ('flatfish', 'aquarium_fish'))
    """
    check_count("seed", seed, least=0)
    numbers = _numbers("split", split, (2, 3), least=0)
    train, validation, test = numbers if len(numbers) == 3 else (numbers[0], 0, numbers[1])
    if train + validation + test != 5 or not train or not test:
        raise ValueError(f"split must divide 5 sub-classes, with some to train and to test on, got {split!r}")
    parts: Division = {part: {} for part in SPLITS}
    for name, members in SUPER_CLASSES.items():
        ranked = tuple(sorted(members, key=lambda member: blake2b(f"{seed} {member}".encode()).digest()))
        parts["train"][name] = ranked[:train]
        parts["validation"][name] = ranked[train : train + validation] or ranked[:train]
        parts["test"][name] = ranked[train + validation :]
    return parts


@dataclass(frozen=True, eq=False)
class CollageReader:
    """Collage ``index`` shows ``pixels[places[index]]``, row by row from the top left.

    pixels: (k, 32, 32, 3), the last of them blank.  places: (n, cells * cells); -1 is blank.
    true_cells: (n,), where the picture is that decides the label.
    """

    pixels: NDArray[np.uint8]
    places: NDArray[np.int64]
    true_cells: NDArray[np.int64]

    def __call__(self, index: int) -> Image.Image:
        return Image.fromarray(self.draw(index))

    def draw(self, index: int) -> NDArray[np.uint8]:
        """Collage ``index`` (cells * 32, cells * 32, 3)."""
        shown = self.pixels[self.places[self._check(index)]]
        cells = round(len(shown) ** 0.5)
        rows = shown.reshape(cells, cells, SIDE, SIDE, 3).swapaxes(1, 2)
        return np.ascontiguousarray(rows.reshape(cells * SIDE, cells * SIDE, 3))

    def cell_of(self, index: int) -> int:
        """The cell that decides the label, counted row by row from the top left."""
        return int(self.true_cells[self._check(index)])

    def key(self, index: int) -> str:
        return blake2b(self.draw(index).tobytes(), digest_size=16, person=b"collage-1").hexdigest()

    def _check(self, index: int) -> int:
        if not 0 <= index < len(self.places):
            raise IndexError(f"index must lie in 0..{len(self.places) - 1}, got {index}")
        return index


def _cifar(folder: Path) -> Pictures:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; the collage needs that of CIFAR-100, as collage:FOLDER")
    source = read_dataset("cifar100", folder)
    known = {member for members in SUPER_CLASSES.values() for member in members}
    if lacking := sorted(known - set(source.classes)):
        raise BrokenData(f"{folder} has no pictures of {lacking[0]!r}: {len(lacking)} of CIFAR-100's classes lack")
    return source


def _pools(
    source: Pictures, parts: Division, seed: int, apart: bool = False
) -> dict[tuple[str, str], NDArray[np.int64]]:
    """The pictures of each (split, sub-class), in an order of the seed's."""
    pools: dict[tuple[str, str], NDArray[np.int64]] = {}
    number = {name: i for i, name in enumerate(source.classes)}
    for name, members in SUPER_CLASSES.items():
        for member in members:
            own = np.flatnonzero(source.labels == number[member])
            own = _chance(seed, list(SUPER_CLASSES).index(name), members.index(member)).permutation(own)
            of_parts = [part for part in SPLITS if member in parts[part][name]]
            if apart:
                pools |= {(part, member): _official(source, own, part) for part in of_parts}
                continue
            if len(of_parts) == 1:
                pools[of_parts[0], member] = own
                continue
            held_out = max(1, len(own) // HELD_OUT)
            if held_out == len(own):
                raise BrokenData(f"{member!r} has a single picture, which cannot both train and validate")
            pools["validation", member], pools["train", member] = own[:held_out], own[held_out:]
    return pools


def _official(source: Pictures, own: NDArray[np.int64], part: str) -> NDArray[np.int64]:
    """Those that CIFAR-100 has for its training, or for validation and test those of its test."""
    wanted = "train" if part == "train" else "test"
    assert source.splits is not None  # CIFAR-100 has them in every layout
    chosen = own[source.splits[own] == wanted]
    if not len(chosen):
        raise BrokenData(f"apart=true needs pictures of {source.classes[source.labels[own[0]]]!r} for {wanted}")
    return chosen


def _draw(
    pools: dict[tuple[str, str], NDArray[np.int64]], parts: Division, counts: dict[str, int], cells: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which picture is in which cell (n, cells * cells), and which cell is the true one (n,)."""
    places, true_cells = [], []
    for i, part in enumerate(SPLITS):
        behind = [pools[part, member] for name in BACKGROUND for member in parts[part][name]]
        for label, name in enumerate(FOREGROUND):
            # a row for each collage: chances are drawn row by row, so that more rows leave the first as they are
            chances = _chance(seed, i, label).random((counts[part], 1 + 2 * cells**2))
            true = (chances[:, 0] * cells**2).astype(np.int64)
            shown = _some_of(behind, chances[:, 1::2], chances[:, 2::2])
            turns = [pools[part, member] for member in parts[part][name]]
            for number, cell in enumerate(true.tolist()):
                turn, which = divmod(number, len(turns))
                shown[number, cell] = turns[which][turn % len(turns[which])]
            places.append(shown)
            true_cells.append(true)
    return np.concatenate(places), np.concatenate(true_cells)


def _some_of(
    pools: list[NDArray[np.int64]], which: NDArray[np.float64], where: NDArray[np.float64]
) -> NDArray[np.int64]:
    """By chances in [0, 1): one of the sub-classes, all alike, and one of its pictures."""
    lengths = np.array([len(pool) for pool in pools])
    chosen = (which * len(pools)).astype(np.int64)
    inside = (where * lengths[chosen]).astype(np.int64)
    return np.concatenate(pools)[(lengths.cumsum() - lengths)[chosen] + inside]


def _read(
    source: Pictures, places: NDArray[np.int64], true_cells: NDArray[np.int64], progress: bool
) -> tuple[CollageReader, tuple[Problem, ...], NDArray[np.bool_]]:
    """The reader, what cannot be read, and which collages have nothing of that in them."""
    used = np.unique(places[places >= 0])
    pixels = np.full((len(used) + 1, SIDE, SIDE, 3), BLANK, dtype=np.uint8)
    damaged = np.zeros(len(source), dtype=bool)
    problems: list[Problem] = []
    indices: Iterable[int] = used.tolist()
    if progress:
        from tqdm import tqdm

        indices = tqdm(indices, desc="reading pictures", unit="", disable=None)
    for row, index in enumerate(indices):
        try:
            image = source.image(index)
        except UnreadablePicture as error:
            damaged[index] = True
            problems.append(Problem(source.names[index], error.reason))
            continue
        pixels[row] = np.asarray(image if image.size == (SIDE, SIDE) else image.resize((SIDE, SIDE)))
    good: NDArray[np.bool_] = np.logical_not((damaged[places] & (places >= 0)).any(1))
    if not good.any():
        raise BrokenData(f"no collage can be made of what can be read of {source.name}; the first: {problems[0]}")
    rows = np.where(places >= 0, np.searchsorted(used, places), -1)
    return CollageReader(pixels, rows, true_cells), (*source.problems, *problems), good


def _numbers(name: str, text: str, how_many: tuple[int, ...], least: int) -> tuple[int, ...]:
    pieces = str(text).split("/")
    if len(pieces) not in how_many or not all(piece.isdecimal() and int(piece) >= least for piece in pieces):
        example = SPLIT if name == "split" else PICTURES
        raise ValueError(f"{name} must be whole numbers as {example} (train/validation/test), got {text!r}")
    return tuple(int(piece) for piece in pieces)


def _chance(*seeds: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))
