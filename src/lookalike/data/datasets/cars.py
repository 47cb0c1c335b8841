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

from lookalike.data.datasets.layout import Benchmark, Part, any_of, distinct
from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures

LAST_TRAINING_CLASS = 98
ONE_FILE = "cars_annos.mat"
TRAIN_LIST, TEST_LIST, META = "cars_train_annos.mat", "cars_test_annos_withlabels.mat", "cars_meta.mat"
KIT_FOLDERS = ("devkit", "car_devkit/devkit", ".")  # the test labels come apart and lie beside devkit/ or in it


def read(root: Path) -> Pictures:
    if (root / ONE_FILE).exists():
        content = _load(root / ONE_FILE, "annotations", "class_names")
        listed = _rows(root / ONE_FILE, content["annotations"], "relative_im_path")
        names = _texts(content["class_names"])
    else:
        listed = []
        for file, folder in ((TRAIN_LIST, "cars_train"), (TEST_LIST, "cars_test")):
            path = _in_kit(root, file)
            pictures = f"{folder}/{folder}" if (root / folder / folder).is_dir() else folder
            rows = _rows(path, _load(path, "annotations")["annotations"], "fname")
            listed += [(f"{pictures}/{name}", number) for name, number in rows]
        names = _texts(_load(_in_kit(root, META), "class_names")["class_names"])
    classes = distinct(dict(enumerate(names, start=1)))
    strange = next((pair for pair in listed if pair[1] not in classes), None)
    if strange is not None:
        raise ValueError(f"{root}: {strange[0]} is of class {strange[1]}, but there are names for 1..{len(classes)}")
    return table_of_files(
        "cars",
        root,
        [name for name, _ in listed],
        [classes[number] for _, number in listed],
        classes=list(classes.values()),
        splits=["train" if number <= LAST_TRAINING_CLASS else "test" for _, number in listed],
    )


def missing(root: Path) -> list[str]:
    if (root / ONE_FILE).exists():
        return [] if (root / "car_ims").is_dir() else ["car_ims/"]
    lists = [f"devkit/{file}" for file in (TRAIN_LIST, TEST_LIST, META) if not _in_kit(root, file).exists()]
    return lists + [f"{folder}/" for folder in ("cars_train", "cars_test") if not (root / folder).is_dir()]


def _in_kit(root: Path, file: str) -> Path:
    places = [root / folder / file for folder in KIT_FOLDERS]
    return next((place for place in places if place.exists()), places[0])


def _load(file: Path, *variables: str) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError("Cars196 keeps its labels in Matlab files: pip install scipy to read them") from error
    try:
        content: dict[str, Any] = loadmat(file, squeeze_me=True, chars_as_strings=True)
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise ValueError(f"{file} is not a readable Matlab file: {error}") from error
    lacking = [variable for variable in variables if variable not in content]
    if lacking:
        raise ValueError(f"{file} lacks the variable {lacking[0]}")
    return content


def _rows(file: Path, annotations: Any, path_field: str) -> list[tuple[str, int]]:
    """(picture, class) of each annotation; the others of its fields are the box."""
    records = np.atleast_1d(annotations)
    fields = records.dtype.names or ()
    if path_field not in fields or "class" not in fields:
        raise ValueError(f"{file}: annotations must have the fields {path_field} and class, got {', '.join(fields)}")
    return [
        (str(name).strip(), int(number)) for name, number in zip(records[path_field], records["class"], strict=True)
    ]


def _texts(cells: Any) -> list[str]:
    return [str(cell) for cell in np.atleast_1d(cells)]


CARS = Benchmark(
    name="cars",
    title="Cars196 (car models)",
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    classes=196,
    pictures=16_185,
    parts={"train": Part(98, 8_054), "test": Part(98, 8_131)},
    files=(
        "cars_annos.mat, car_ims/",
        "or cars_train/, cars_test/, devkit/cars_train_annos.mat, devkit/cars_test_annos_withlabels.mat, "
        "devkit/cars_meta.mat",
    ),
    folders=("stanford_cars", "cars196", "CARS196", "cars"),
    recognises=any_of(ONE_FILE, *(f"{folder}/{file}" for folder in KIT_FOLDERS for file in (TRAIN_LIST, TEST_LIST))),
    missing=missing,
    read=read,
    aliases=("cars196", "stanford-cars", "stanford_cars"),
)
