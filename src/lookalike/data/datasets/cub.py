"""CUB-200-2011: 200 kinds of birds. The first 100 classes are for training, the others for testing.

Reference: Wah et al., "The Caltech-UCSD Birds-200-2011 Dataset", 2011. The official split of pictures
(train_test_split.txt) is for classification and not used.
"""

from __future__ import annotations

from pathlib import Path

from lookalike.data.datasets.layout import Benchmark, Part, all_of, distinct, read_rows, read_whole_number
from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures

LAST_TRAINING_CLASS = 100
LISTS = frozenset({"images.txt", "image_class_labels.txt", "classes.txt"})


def read(root: Path) -> Pictures:
    classes_file, labels_file = root / "classes.txt", root / "image_class_labels.txt"
    classes = distinct({read_whole_number(classes_file, number): name for number, name in read_rows(classes_file, 2)})
    number_of = {image: read_whole_number(labels_file, number) for image, number in read_rows(labels_file, 2)}
    images = read_rows(root / "images.txt", 2)
    unlabelled = next((name for image, name in images if number_of.get(image) not in classes), None)
    if unlabelled is not None:
        raise ValueError(f"{labels_file} gives {unlabelled} no class that {classes_file.name} knows")
    numbers = [number_of[image] for image, _ in images]
    return table_of_files(
        "cub",
        root / "images",
        [name for _, name in images],
        [classes[number] for number in numbers],
        classes=list(classes.values()),
        splits=["train" if number <= LAST_TRAINING_CLASS else "test" for number in numbers],
    )


CUB = Benchmark(
    name="cub",
    title="CUB-200-2011 (birds)",
    page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    classes=200,
    pictures=11_788,
    parts={"train": Part(100, 5_864), "test": Part(100, 5_924)},
    files=("images.txt", "image_class_labels.txt", "classes.txt", "images/"),
    folders=("CUB_200_2011",),
    recognises=lambda root: len(LISTS.intersection(each.name for each in root.glob("*.txt"))) >= 2,
    missing=all_of(*sorted(LISTS), "images"),
    read=read,
    aliases=("cub200", "cub-200-2011", "cub_200_2011"),
)
