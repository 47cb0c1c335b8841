"""The CIFAR-100 collage: one picture decides the class, the others show background that all classes share.

A collage is a grid of cells of 32 px, by default 2 x 2. One cell, at random, shows a picture of one of 16 super-classes
of CIFAR-100, which is the label. The others show pictures of the 4 super-classes in BACKGROUND. Every super-class has 5
sub-classes, which are divided between training, validation and test (2/1/2), those of the background too. The labels
are the same in all splits, but the test shows sub-classes that were not trained.

Pictures: CIFAR-100's split into 500 and 100 per class is ignored, all 600 are one pool. With ``apart`` the 500 train
and the 100 validate and test, for networks that were trained to classify the 500. The sub-classes of a super-class take
turns in the true cell. Their pictures come in a seeded order; none comes twice before all have come once. Background
pictures are drawn at random, with replacement.

Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023. It does not say which
sub-classes are in which split: here the seed decides. Its code has 3/2 sub-classes in alphabetical order and no
validation. That is ``split="3/2", order="listed", pictures="1800/1200"``: every picture of the 16 super-classes is once
in the true cell. With 3/2 sub-classes and three numbers in ``pictures``, a tenth of the pictures of the training
sub-classes validates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
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
BLANK = (129, 124, 112)  # CIFAR-100's mean colour, zero after the usual normalisation
HELD_OUT = 10  # without sub-classes for validation, 1 of 10 pictures of a training sub-class validates
SPLIT = "2/1/2"
PICTURES = "600/150/300"
ORDERS = ("seeded", "listed")
FORM = "collage(FOLDER, split=2/1/2, order=seeded, seed=0, pictures=600/150/300, cells=2, distilled=false, apart=false)"
Division = dict[str, dict[str, tuple[str, ...]]]  # split -> super-class -> sub-classes
Pools = dict[tuple[str, str], NDArray[np.int64]]  # (split, sub-class) -> numbers of pictures


def collage(
    folder: str | Path,
    *,
    split: str = SPLIT,
    order: str = "seeded",
    seed: int = 0,
    pictures: str = PICTURES,
    cells: int = 2,
    distilled: bool = False,
    apart: bool = False,
    strict: bool = False,
    progress: bool = False,
) -> Pictures:
    """Compose collages of 16 classes; every class is in all splits.

    The pictures are read at once and kept in memory, 3 kB each.

    Args:
        folder: CIFAR-100 in any layout that ``lookalike.data.datasets`` reads.
        split: How many of the 5 sub-classes train, validate and test; two numbers: train and test.
        order: Which of them: "seeded" draws by seed, "listed" takes the first ones, in the order of SUPER_CLASSES.
        seed: Seed of the division and of the collages.
        pictures: Collages per class in the three splits; two numbers: train and test, without validation. A larger
            number keeps the first ones.
        cells: A collage has cells x cells cells; 1 is a single picture, 32 px wide.
        distilled: Leave the background cells blank.
        apart: Train on the training pictures of CIFAR-100; validate and test on its test pictures.
        strict: Raise if a picture cannot be read; otherwise its collages are left out.
        progress: Show a progress bar while reading.

    Returns:
        The table, with a ``CollageReader``.

    Raises:
        ValueError: If a setting is invalid or there is no such folder.
        BrokenData: If CIFAR-100 is incomplete or, with ``strict``, a picture cannot be read.
    """
    division = sub_classes(split, seed, order)
    counts = _counts(pictures)
    if "validation" not in counts:
        if division["validation"] != division["train"]:
            raise ValueError(
                f"pictures {pictures!r} leave out the validation, to which split {split!r} gives sub-classes"
            )
        division["validation"] = {}
    check_count("cells", cells)
    for setting, value in (("distilled", distilled), ("apart", apart)):
        if not isinstance(value, bool):
            raise TypeError(f"{setting} must be true or false, got {value!r}")
    source = _cifar(Path(folder).expanduser())
    cell_pictures, true_cells = _draw(_pools(source, division, seed, apart), division, counts, cells, seed)
    if distilled:
        cell_pictures[np.arange(cells**2) != true_cells[:, None]] = -1
    reader, problems, complete = _read(source, cell_pictures, true_cells, progress)
    if strict:
        raise_problems("collage", problems)
    prefix = "collage"
    if (split, seed, cells) != (SPLIT, 0, 2):
        prefix += f"-{split.replace('/', '')}-{seed}-{cells}"
    if order != "seeded":
        prefix += f"-{order}"
    if "validation" not in counts:
        prefix += "-joined"
    if distilled:
        prefix += "-distilled"
    if apart:
        prefix += "-apart"
    names: list[str] = []
    labels: list[int] = []
    splits: list[str] = []
    for split_name, count in counts.items():
        for label, class_name in enumerate(FOREGROUND):
            names += [f"{prefix}/{split_name}/{class_name}/{number:04d}" for number in range(count)]
            labels += [label] * count
            splits += [split_name] * count
    table = Pictures(
        name="collage",
        names=tuple(names),
        labels=np.array(labels, dtype=np.int64),
        classes=FOREGROUND,
        reader=reader,
        origins=np.arange(len(names), dtype=np.int64),
        splits=np.array(splits),
    )
    if not complete.all():
        table = table.take(complete)
    return replace(table, problems=problems, notes=source.notes)


def parse_collage(text: str, *, strict: bool = False, progress: bool = False) -> Pictures:
    """Compose the collage of a text: "collage:FOLDER", or "collage(FOLDER, split=3/2)" with settings of ``collage``.

    Raises:
        ValueError: If the text is not of this form.
    """
    if text.startswith("collage:"):
        return collage(text.removeprefix("collage:").strip(), strict=strict, progress=progress)
    arguments = text.removeprefix("collage(").removesuffix(")")
    folder, *assignments = map(str.strip, arguments.split(","))
    if not text.startswith("collage(") or not text.endswith(")") or not folder:
        raise ValueError(f"the collage needs the folder of CIFAR-100: write collage:FOLDER or {FORM}, got {text!r}")
    settings: dict[str, Any] = {}
    for assignment in filter(None, assignments):
        name, _, value = map(str.strip, assignment.partition("="))
        if name in ("split", "pictures", "order"):
            settings[name] = value
        elif name in ("seed", "cells") and value.isdecimal():
            settings[name] = int(value)
        elif name in ("distilled", "apart") and value.lower() in ("true", "false"):
            settings[name] = value.lower() == "true"
        else:
            raise ValueError(f"the collage is written {FORM}, got {assignment!r}")
    return collage(folder, strict=strict, progress=progress, **settings)


def sub_classes(split: str = SPLIT, seed: int = 0, order: str = "seeded") -> Division:
    """Divide the sub-classes between the splits.

    Args:
        split: As in ``collage``. Without sub-classes for validation, those for training are used, with other pictures.
        seed: Seed of the division.
        order: "seeded", or "listed" as in SUPER_CLASSES.

    Returns:
        split -> super-class -> sub-classes.

    Examples:
        >>> sub_classes("2/1/2")["train"]["fish"], sub_classes("2/1/2")["test"]["fish"]
        (('ray', 'trout'), ('flatfish', 'aquarium_fish'))
    """
    check_count("seed", seed, least=0)
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    numbers = _numbers("split", split, (2, 3), least=0)
    train, test = numbers[0], numbers[-1]
    validation = sum(numbers[1:-1])
    if train + validation + test != 5 or not train or not test:
        raise ValueError(f"split must divide 5 sub-classes, with some to train and to test on, got {split!r}")
    division: Division = {"train": {}, "validation": {}, "test": {}}
    for name, members in SUPER_CLASSES.items():
        ranked = members
        if order == "seeded":
            ranked = tuple(sorted(members, key=lambda member: blake2b(f"{seed} {member}".encode()).digest()))
        division["train"][name] = ranked[:train]
        division["validation"][name] = ranked[train : train + validation] or ranked[:train]
        division["test"][name] = ranked[train + validation :]
    return division


@dataclass(frozen=True, eq=False)
class CollageReader:
    """Composes collages: collage ``index`` shows ``pixels[places[index]]``, row by row from the top left.

    Attributes:
        pixels: (k, 32, 32, 3), uint8; the last picture is blank.
        places: Picture in each cell, (n, cells * cells); -1 is blank.
        true_cells: Cell that decides the label, (n,).
    """

    pixels: NDArray[np.uint8]
    places: NDArray[np.int64]
    true_cells: NDArray[np.int64]

    def __call__(self, index: int) -> Image.Image:
        """Return collage ``index`` as a picture."""
        return Image.fromarray(self.draw(index))

    def draw(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of collage ``index``, (cells * 32, cells * 32, 3)."""
        cell_pixels = self.pixels[self.places[self._check(index)]]
        cells = round(len(cell_pixels) ** 0.5)
        rows = cell_pixels.reshape(cells, cells, SIDE, SIDE, 3).swapaxes(1, 2)
        return np.ascontiguousarray(rows.reshape(cells * SIDE, cells * SIDE, 3))

    def cell_of(self, index: int) -> int:
        """Return the cell that decides the label, counted row by row from the top left."""
        return int(self.true_cells[self._check(index)])

    def key(self, index: int) -> str:
        """Hash the pixels of collage ``index``."""
        return blake2b(self.draw(index).tobytes(), digest_size=16, person=b"collage-1").hexdigest()

    def _check(self, index: int) -> int:
        if not 0 <= index < len(self.places):
            raise IndexError(f"index must lie in 0..{len(self.places) - 1}, got {index}")
        return index


def _cifar(folder: Path) -> Pictures:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; the collage needs that of CIFAR-100, as collage:FOLDER")
    source = read_dataset("cifar100", folder)
    missing = sorted(set(chain(*SUPER_CLASSES.values())) - set(source.classes))
    if missing:
        raise BrokenData(f"{folder} has no pictures of {missing[0]!r}: {len(missing)} classes of CIFAR-100 are missing")
    return source


def _pools(source: Pictures, division: Division, seed: int, apart: bool = False) -> Pools:
    """Pictures of each (split, sub-class), in a seeded order."""
    pools: Pools = {}
    for i, (name, members) in enumerate(SUPER_CLASSES.items()):
        for j, member in enumerate(members):
            indices = np.flatnonzero(source.labels == source.classes.index(member))
            indices = _rng(seed, i, j).permutation(indices)
            splits = [split for split in SPLITS if member in division[split].get(name, ())]
            if apart:
                for split in splits:
                    pools[split, member] = _official(source, indices, split)
            elif len(splits) == 1:
                pools[splits[0], member] = indices
            else:
                held_out = max(1, len(indices) // HELD_OUT)
                if held_out == len(indices):
                    raise BrokenData(f"{member!r} has a single picture, which cannot both train and validate")
                pools["validation", member], pools["train", member] = indices[:held_out], indices[held_out:]
    return pools


def _official(source: Pictures, indices: NDArray[np.int64], split: str) -> NDArray[np.int64]:
    """Those of CIFAR-100's training pictures, or for validation and test those of its test pictures."""
    official_split = "train" if split == "train" else "test"
    assert source.splits is not None  # CIFAR-100 has them in every layout
    selected = indices[source.splits[indices] == official_split]
    if not len(selected):
        member = source.classes[source.labels[indices[0]]]
        raise BrokenData(f"apart=true needs pictures of {member!r} for {official_split}")
    return selected


def _draw(
    pools: Pools, division: Division, counts: dict[str, int], cells: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose the picture of each cell (n, cells * cells), and the true cell of each collage (n,)."""
    cell_pictures, true_cells = [], []
    for i, split in enumerate(SPLITS):
        if split not in counts:
            continue
        background = []
        for name in BACKGROUND:
            background += [pools[split, member] for member in division[split][name]]
        for label, name in enumerate(FOREGROUND):
            # one row per collage: a larger number of collages leaves the first rows as they are
            uniform = _rng(seed, i, label).random((counts[split], 1 + 2 * cells**2))
            true = (uniform[:, 0] * cells**2).astype(np.int64)
            pictures = _choose(background, uniform[:, 1::2], uniform[:, 2::2])
            members = division[split][name]
            for number, cell in enumerate(true.tolist()):
                turn, member = divmod(number, len(members))
                pool = pools[split, members[member]]
                pictures[number, cell] = pool[turn % len(pool)]
            cell_pictures.append(pictures)
            true_cells.append(true)
    return np.concatenate(cell_pictures), np.concatenate(true_cells)


def _choose(
    pools: list[NDArray[np.int64]], which_pool: NDArray[np.float64], which_picture: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Choose a pool, all equally likely, and one of its pictures, by uniform numbers in [0, 1)."""
    lengths = np.array(list(map(len, pools)))
    pool = (which_pool * len(pools)).astype(np.int64)
    position = (which_picture * lengths[pool]).astype(np.int64)
    return np.concatenate(pools)[(lengths.cumsum() - lengths)[pool] + position]


def _read(
    source: Pictures, cell_pictures: NDArray[np.int64], true_cells: NDArray[np.int64], progress: bool
) -> tuple[CollageReader, tuple[Problem, ...], NDArray[np.bool_]]:
    """Read the pictures; return the reader, the unreadable pictures and a mask of collages without those, (n,)."""
    is_shown = cell_pictures >= 0
    used = np.unique(cell_pictures[is_shown])
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
        if image.size != (SIDE, SIDE):
            image = image.resize((SIDE, SIDE))
        pixels[row] = np.asarray(image)
    complete: NDArray[np.bool_] = np.logical_not((damaged[cell_pictures] & is_shown).any(1))
    if not complete.any():
        raise BrokenData(f"no collage can be composed of the readable pictures of {source.name}: {problems[0]}")
    rows = np.where(is_shown, np.searchsorted(used, cell_pictures), -1)
    return CollageReader(pixels, rows, true_cells), (*source.problems, *problems), complete


def _counts(pictures: str) -> dict[str, int]:
    """Collages per class by split."""
    numbers = _numbers("pictures", pictures, (2, 3), least=1)
    if len(numbers) == 2:
        return {"train": numbers[0], "test": numbers[1]}
    return dict(zip(SPLITS, numbers, strict=True))


def _numbers(name: str, text: str, lengths: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Parse whole numbers such as 2/1/2."""
    pieces = str(text).split("/")
    if len(pieces) in lengths and all(map(str.isdecimal, pieces)):
        numbers = tuple(map(int, pieces))
        if min(numbers) >= least:
            return numbers
    example = SPLIT if name == "split" else PICTURES
    raise ValueError(f"{name} must be whole numbers as {example} (train/validation/test), got {text!r}")


def _rng(*seeds: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))
