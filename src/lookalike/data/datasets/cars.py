"""Cars196: 196 models of cars.

Classes 1..98 are for training, 99..196 for testing, whichever part of the official split of pictures (which is for
classification) they come from.

Reference: Krause et al., "3D Object Representations for Fine-Grained Categorization", 2013. Two layouts are in
circulation: all pictures in car_ims/ with one cars_annos.mat, and cars_train/ and cars_test/ with a devkit/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lookalike.data.datasets.layout import DatasetSpec, SplitSize, distinct, first_existing, splits_by_class
from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures

TRAINING_CLASSES = 98
ONE_FILE = "cars_annos.mat"
TRAIN_LIST, TEST_LIST, META = "cars_train_annos.mat", "cars_test_annos_withlabels.mat", "cars_meta.mat"
KIT_FOLDERS = ("devkit", "car_devkit/devkit", ".")  # the test labels are a separate download


def read(root: Path) -> Pictures:
    """Read the table below ``root``; no picture is opened."""
    if (root / ONE_FILE).exists():
        content = _load(root / ONE_FILE, "annotations", "class_names")
        rows = _rows(root / ONE_FILE, content["annotations"], "relative_im_path")
    else:
        rows = _kit_rows(root, TRAIN_LIST, "cars_train") + _kit_rows(root, TEST_LIST, "cars_test")
        content = _load(_in_kit(root, META), "class_names")
    class_names = map(str, np.atleast_1d(content["class_names"]))
    classes = distinct(dict(enumerate(class_names, start=1)))
    names: list[str] = []
    class_of: list[str] = []
    for name, number in rows:
        if number not in classes:
            raise ValueError(f"{root}: {name} is of class {number}, but there are names for 1..{len(classes)}")
        names.append(name)
        class_of.append(classes[number])
    ordered = list(classes.values())
    splits = splits_by_class(class_of, ordered[:TRAINING_CLASSES])
    return table_of_files("cars", root, names, class_of, classes=ordered, splits=splits)


def missing(root: Path) -> list[str]:
    """List the required files that ``root`` lacks."""
    if (root / ONE_FILE).exists():
        return _missing_folders(root, "car_ims")
    lists = [f"devkit/{file}" for file in (TRAIN_LIST, TEST_LIST, META) if not _in_kit(root, file).exists()]
    return lists + _missing_folders(root, "cars_train", "cars_test")


def _missing_folders(root: Path, *folders: str) -> list[str]:
    return [f"{folder}/" for folder in folders if not (root / folder).is_dir()]


def _in_kit(root: Path, file: str) -> Path:
    return first_existing([root / folder / file for folder in KIT_FOLDERS])


def _recognises(root: Path) -> bool:
    lists = (root / ONE_FILE, _in_kit(root, TRAIN_LIST), _in_kit(root, TEST_LIST))
    return any(map(Path.exists, lists))


def _load(file: Path, *variables: str) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError("Cars196 keeps its labels in Matlab files: pip install scipy to read them") from error
    try:
        content: dict[str, Any] = loadmat(file, squeeze_me=True, chars_as_strings=True)
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise ValueError(f"{file} is not a readable Matlab file: {error}") from error
    for variable in variables:
        if variable not in content:
            raise ValueError(f"{file} lacks the variable {variable}")
    return content


def _kit_rows(root: Path, file: str, folder: str) -> list[tuple[str, int]]:
    """(picture, class number) of a list of the devkit; some archives unpack to ``folder/folder``."""
    path = _in_kit(root, file)
    rows = _rows(path, _load(path, "annotations")["annotations"], "fname")
    if (root / folder / folder).is_dir():
        folder = f"{folder}/{folder}"
    return [(f"{folder}/{name}", number) for name, number in rows]


def _rows(file: Path, annotations: Any, path_field: str) -> list[tuple[str, int]]:
    """(picture, class number) of each annotation; its other fields are the box."""
    records = np.atleast_1d(annotations)
    fields = records.dtype.names or ()
    if path_field not in fields or "class" not in fields:
        raise ValueError(f"{file}: annotations must have the fields {path_field} and class, got {', '.join(fields)}")
    rows = []
    for name, number in zip(records[path_field], records["class"], strict=True):
        rows.append((str(name).strip(), int(number)))
    return rows


CARS = DatasetSpec(
    name="cars",
    title="Cars196 (car models)",
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    classes=196,
    pictures=16_185,
    sizes={"train": SplitSize(98, 8_054), "test": SplitSize(98, 8_131)},
    files=(
        "cars_annos.mat, car_ims/",
        "or cars_train/, cars_test/, devkit/cars_train_annos.mat, devkit/cars_test_annos_withlabels.mat, "
        "devkit/cars_meta.mat",
    ),
    folders=("stanford_cars", "cars196", "CARS196", "cars"),
    recognises=_recognises,
    missing=missing,
    read=read,
    aliases=("cars196", "stanford-cars", "stanford_cars"),
)
