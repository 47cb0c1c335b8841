"""FGVC-Aircraft: 100 variants of aircraft.

For metric learning the classes are split: the first half of the variants, in the order of variants.txt, is for training
and the second half for testing, whichever part of the official split of pictures they come from. The strip with the
copyright line, 20 pixels at the foot of each picture, is left as it is.

Reference: Maji et al., "Fine-Grained Visual Classification of Aircraft", 2013.
"""

from __future__ import annotations

from pathlib import Path

from lookalike.data.datasets.layout import (
    DatasetSpec,
    SplitSize,
    all_of,
    any_of,
    read_lines,
    read_rows,
    splits_by_class,
)
from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures

TRAINVAL, TRAIN, VAL = "images_variant_trainval.txt", "images_variant_train.txt", "images_variant_val.txt"
TEST = "images_variant_test.txt"


def read(root: Path) -> Pictures:
    """Read the table below ``root``; no picture is opened."""
    data = _data_folder(root)
    variants = read_lines(data / "variants.txt")
    names: list[str] = []
    class_of: list[str] = []
    for file in _lists(data):
        for image, variant in read_rows(data / file, 2):
            if variant not in variants:
                raise ValueError(f"{data / 'variants.txt'} lacks the variant {variant!r}, which {file} names")
            names.append(f"{image}.jpg")
            class_of.append(variant)
    splits = splits_by_class(class_of, variants[: len(variants) // 2])
    return table_of_files("aircraft", data / "images", names, class_of, classes=variants, splits=splits)


def missing(root: Path) -> list[str]:
    """List the required files that ``root`` lacks."""
    data = _data_folder(root)
    lacks = all_of("variants.txt", *_lists(data), "images")
    return [f"data/{file}" for file in lacks(data)]


def _lists(data: Path) -> tuple[str, ...]:
    """Lists of pictures; some copies have train and val instead of trainval."""
    if not (data / TRAINVAL).exists() and any_of(TRAIN, VAL)(data):
        return (TRAIN, VAL, TEST)
    return (TRAINVAL, TEST)


def _data_folder(root: Path) -> Path:
    if (root / "data").is_dir():
        return root / "data"
    return root


def _recognises(root: Path) -> bool:
    any_list = any_of(TRAINVAL, TRAIN, TEST)
    return any_list(root / "data") or any_list(root)


AIRCRAFT = DatasetSpec(
    name="aircraft",
    title="FGVC-Aircraft (variants)",
    page="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
    classes=100,
    pictures=10_000,
    sizes={"train": SplitSize(50, 5_000), "test": SplitSize(50, 5_000)},
    files=("data/variants.txt", "data/images_variant_trainval.txt", "data/images_variant_test.txt", "data/images/"),
    folders=("fgvc-aircraft-2013b",),
    recognises=_recognises,
    missing=missing,
    read=read,
    aliases=("fgvc-aircraft", "fgvc_aircraft"),
)
