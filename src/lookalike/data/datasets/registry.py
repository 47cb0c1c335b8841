"""All public data sets by name, and the search for them in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lookalike._util.suggestions import closest
from lookalike.data.datasets.aircraft import AIRCRAFT
from lookalike.data.datasets.cars import CARS
from lookalike.data.datasets.cifar import CIFAR10, CIFAR100
from lookalike.data.datasets.cub import CUB
from lookalike.data.datasets.inshop import INSHOP
from lookalike.data.datasets.layout import RECALL_RANKS, DatasetSpec
from lookalike.data.datasets.mnist import FASHION, MNIST
from lookalike.data.datasets.products import SOP
from lookalike.data.pictures import BrokenData, Pictures

DATASETS = {spec.name: spec for spec in (CUB, CARS, SOP, INSHOP, AIRCRAFT, CIFAR10, CIFAR100, MNIST, FASHION)}
MAX_SUBFOLDERS = 16  # with more subfolders than this, they are classes and are not searched for data sets
_ALIASES = {alias: spec.name for spec in DATASETS.values() for alias in spec.aliases}


def names() -> list[str]:
    """Return the names of all data sets."""
    return list(DATASETS)


def get(name: str) -> DatasetSpec:
    """Return a data set by its name or alias.

    Raises:
        ValueError: If there is none; the message suggests the closest name.
    """
    spec = lookup(name)
    if spec is not None:
        return spec
    match = closest(name, [*DATASETS, *_ALIASES])
    if match is None:
        hint = f"there are {', '.join(DATASETS)}"
    else:
        hint = f"did you mean {_ALIASES.get(match, match)!r}?"
    raise ValueError(f"there is no data set called {name!r}; {hint}")


def lookup(name: str) -> DatasetSpec | None:
    """Return a data set by its name or alias, or None."""
    name = name.lower()
    return DATASETS.get(_ALIASES.get(name, name))


def recall_ranks(name: str) -> tuple[int, ...]:
    """Return the values K of R@K that are reported for a data set, or the usual ones for other pictures."""
    spec = lookup(name)
    return RECALL_RANKS if spec is None else spec.ks


def describe() -> list[dict[str, Any]]:
    """Return a row for each data set, ready for JSON."""
    rows = []
    for spec in DATASETS.values():
        row = {
            "name": spec.name,
            "title": spec.title,
            "classes": spec.classes,
            "pictures": spec.pictures,
            "parts": {name: size._asdict() for name, size in spec.sizes.items()},
            "page": spec.page,
            "files": list(spec.files),
        }
        rows.append(row)
    return rows


def recognise(path: str | Path) -> str | None:
    """Return the name of the data set whose layout ``path`` has, complete or not; None if there is none."""
    path = Path(path)
    if not path.is_dir():
        return None
    for spec in DATASETS.values():
        if spec.recognises(path):
            return spec.name
    return None


def hint_below(path: str | Path) -> str | None:
    """Return a hint for a folder with a data set in a subfolder; None if there is none."""
    try:
        entries = sorted(Path(path).iterdir())
    except OSError:  # reported when the pictures are listed
        return None
    folders = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    if len(folders) > MAX_SUBFOLDERS:
        return None
    for folder in folders:
        name = recognise(folder)
        if name is not None:
            return f"{path} is not a folder of classes but holds {get(name).title}: did you mean {name}:{folder}?"
    return None


def read_dataset(name: str, path: str | Path) -> Pictures:
    """Read the table of a data set; no picture is opened.

    Args:
        name: Name or alias of the data set.
        path: Its folder, or the folder above its usual one.

    Returns:
        The table of pictures.

    Raises:
        ValueError: If ``path`` does not hold the data set.
        BrokenData: If the data set is incomplete or damaged.
    """
    spec = get(name)
    path = Path(path)
    root = spec.find(path)
    if root is None:
        expected = "; ".join(spec.files)
        raise ValueError(f"{path} does not hold {spec.title}; expected {expected}. Download it from {spec.page}")
    lacking = spec.missing(root)
    if lacking:
        raise BrokenData(f"{spec.title} in {root} is not complete: {', '.join(lacking)} missing")
    try:
        return spec.read(root)
    except ValueError as error:
        raise BrokenData(str(error)) from error
