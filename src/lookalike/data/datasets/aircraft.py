"""FGVC-Aircraft: 100 variants of aircraft.

For metric learning the classes are split: the first half of the variants, in the order of variants.txt, is for training
and the second half for testing, whichever part of the official split of pictures they come from. The strip with the
copyright line, 20 pixels at the foot of each picture, is left as it is.

Reference: Maji et al., "Fine-Grained Visual Classification of Aircraft", 2013.
"""

from __future__ import annotations

from pathlib import Path

from lookalike.data.datasets.layout import Benchmark, Part, any_of, read_rows
from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures

TOGETHER, APART = ("trainval", "test"), ("train", "val", "test")


def read(root: Path) -> Pictures:
    data = _data(root)
    variants = [row[0] for row in read_rows(data / "variants.txt", 1)]
    number_of = {variant: i for i, variant in enumerate(variants)}
    listed = [
        (image, variant)
        for part in (TOGETHER if _list(data, TOGETHER[0]).exists() else APART)
        for image, variant in read_rows(_list(data, part), 2)
    ]
    strange = next((variant for _, variant in listed if variant not in number_of), None)
    if strange is not None:
        raise ValueError(f"{data / 'variants.txt'} does not have the variant {strange!r} of the lists beside it")
    return table_of_files(
        "aircraft",
        data / "images",
        [f"{image}.jpg" for image, _ in listed],
        [variant for _, variant in listed],
        classes=variants,
        splits=["train" if number_of[variant] < len(variants) // 2 else "test" for _, variant in listed],
    )


def missing(root: Path) -> list[str]:
    data = _data(root)
    parts = APART if any(_list(data, part).exists() for part in APART[:2]) else TOGETHER
    parts = TOGETHER if _list(data, TOGETHER[0]).exists() else parts
    needed = ["variants.txt", *(_list(data, part).name for part in parts), "images"]
    return [f"data/{file}" for file in needed if not (data / file).exists()]


def _list(data: Path, part: str) -> Path:
    return data / f"images_variant_{part}.txt"


def _data(root: Path) -> Path:
    return root / "data" if (root / "data").is_dir() else root


AIRCRAFT = Benchmark(
    name="aircraft",
    title="FGVC-Aircraft (variants)",
    page="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
    classes=100,
    pictures=10_000,
    parts={"train": Part(50, 5_000), "test": Part(50, 5_000)},
    files=("data/variants.txt", "data/images_variant_trainval.txt", "data/images_variant_test.txt", "data/images/"),
    folders=("fgvc-aircraft-2013b",),
    recognises=any_of(*(f"{at}images_variant_{p}.txt" for at in ("data/", "") for p in ("trainval", "train", "test"))),
    missing=missing,
    read=read,
    aliases=("fgvc-aircraft", "fgvc_aircraft"),
)
