"""CUB-200-2011: 200 kinds of birds. The first 100 classes are for training, the others for testing.

Reference: Wah et al., "The Caltech-UCSD Birds-200-2011 Dataset", 2011. The official split of pictures
(train_test_split.txt) is for classification and not used.
"""

from __future__ import annotations

from pathlib import Path

from lookalike.data.datasets.layout import (
    DatasetSpec,
    SplitSize,
    all_of,
    distinct,
    read_rows,
    read_whole_number,
    splits_by_class,
)
from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures

LAST_TRAINING_CLASS = 100
LISTS = ("classes.txt", "image_class_labels.txt", "images.txt")


def read(root: Path) -> Pictures:
    """Read the table below ``root``; no picture is opened."""
    classes_file, labels_file = root / "classes.txt", root / "image_class_labels.txt"
    classes = distinct({read_whole_number(classes_file, number): name for number, name in read_rows(classes_file, 2)})
    class_numbers = {image: read_whole_number(labels_file, number) for image, number in read_rows(labels_file, 2)}
    names: list[str] = []
    class_of: list[str] = []
    for image, name in read_rows(root / "images.txt", 2):
        number = class_numbers.get(image)
        if number is None or number not in classes:
            raise ValueError(f"{labels_file} gives {name} no class that {classes_file.name} lists")
        names.append(name)
        class_of.append(classes[number])
    ordered = list(classes.values())
    training_classes = [name for number, name in classes.items() if number <= LAST_TRAINING_CLASS]
    splits = splits_by_class(class_of, training_classes)
    return table_of_files("cub", root / "images", names, class_of, classes=ordered, splits=splits)


def _recognises(root: Path) -> bool:
    return len(all_of(*LISTS)(root)) <= 1


CUB = DatasetSpec(
    name="cub",
    title="CUB-200-2011 (birds)",
    page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    classes=200,
    pictures=11_788,
    sizes={"train": SplitSize(100, 5_864), "test": SplitSize(100, 5_924)},
    files=("images.txt", "image_class_labels.txt", "classes.txt", "images/"),
    folders=("CUB_200_2011",),
    recognises=_recognises,
    missing=all_of(*LISTS, "images"),
    read=read,
    aliases=("cub200", "cub-200-2011", "cub_200_2011"),
)
